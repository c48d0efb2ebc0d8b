"""One rule, a row of a table; and what tries a table's rows on a setup."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter

#: Whose fields a rule may name -> where what is tried has it; a setup, a model and a rollout have their own.
_OWNERS = {"Mesh": "mesh.", "Lora": "adapters."}
Words = str | Callable[..., str]


def _reader(name):
    """(whose field it is, what reads it of a setup, or of a model)."""
    owner, _, field = name.rpartition(".")
    return owner, attrgetter(_OWNERS.get(owner, "") + field)


@dataclass(frozen=True, repr=False)
class Rule:
    """A value that does not go with the rest of a setup. Functions are called with the setup, or the setup and a model.

    Attributes:
        name: the field: `offload` of a setup, `Mesh.stages`, `Lora.base`.
        broken: whether the value does not go with the rest.
        why: in words after the value, in which {s.…} and {m.…} stand for the setup's and the model's, {f} for what `broken` found. allowed:
            what would go; empty where `why` says what the value needs.
        instead: who answers for what does not go. when: what else has to be so, for the rule to hold.
    """

    name: str
    broken: Callable
    why: Words = ""
    allowed: Words = ""
    instead: str = ""
    when: Callable | None = None

    def error(self, *on) -> str:
        """What the ValueError says: the field, the value, why it does not go, what is allowed, and who answers."""
        owner, read = _reader(self.name)
        value = read(on[-1 if owner == "Model" else 0])
        value = getattr(value, "name", value)  # of a model
        texts, names = (self.why, self.allowed), {"s": on[0], "m": on[-1], "f": self.broken(*on)}
        why, allowed = (text(*on) if callable(text) else text.format(**names) for text in texts)
        why = why if why[:1] in ",:" else f" {why}"
        value = repr(value) if isinstance(value, str | tuple) else value
        said = f"{'' if owner else 'Setup.'}{self.name}: {value}{why}"
        return "; ".join(filter(None, [said, allowed and f"allowed: {allowed}", self.instead]))

    def __repr__(self):
        said = [text if isinstance(text, str) else "…" for text in (self.why, self.allowed) if text]
        return f"Rule({self.name}: {'; allowed: '.join(said) or self.instead})"


Table = tuple[Rule, ...]


class Unlike(Rule):
    """A row whose condition says the error itself."""

    def error(self, *on):
        return "; ".join(filter(None, [self.broken(*on), self.instead]))


def unlike(family: str | None = None, instead: str = "") -> Rule:
    """The book's references, or that of one family, build the model; where they do not, the model says the field and why."""
    return Unlike("Model.family", lambda s, m: m.unlike_reference(family), instead=instead)


def table(*rules: Rule, **usual) -> Table:
    """Rows, with what is usual, such as `why`, `instead` or `when`, for those that do not say it."""
    return tuple(replace(rule, **{name: getattr(rule, name) or said for name, said in usual.items()}) for rule in rules)


def only(name: str, *values, allowed: Words = "", **more) -> Rule:
    """The field has one of these values, and no other."""
    (owner, read), (*others, last) = _reader(name), map(repr, values)
    said = f"{', '.join(others)} or {last}" if others else last
    place = -1 if owner == "Model" else 0
    return Rule(name, lambda *on: read(on[place]) not in values, allowed=allowed or said, **more)


def needs(name: str, usual, other: str, *values: str) -> Rule:
    """The field has its usual value where another field has none of these."""
    said = f"needs {other} {' or '.join(map(repr, values))}, not {{s.{other}!r}}"
    return Rule(name, lambda s: getattr(s, name) != usual and getattr(s, other) not in values, said)


def multiples(number: int, step: int) -> str:
    """The multiples of `step` next to a number."""
    below, above = number // step * step, -(-number // step) * step
    return f"{below} or {above}" if below else f"{above}"


def first(rows: Iterable[Rule], *on) -> Rule | None:
    """The first rule that a setup breaks; None where it breaks none."""
    when, holds = None, True
    for rule in rows:
        if rule.when is not when:  # rows of one table share it
            when, holds = rule.when, rule.when is None or rule.when(*on)
        if holds and rule.broken(*on):
            return rule
    return None


def broken(rows: Iterable[Rule], *on) -> str | None:
    """What the first rule says that a setup breaks; None where it breaks none."""
    rule = first(rows, *on)
    return rule.error(*on) if rule else None


def check(rows: Iterable[Rule], *on) -> None:
    """Raise ValueError where a setup breaks a rule."""
    if why := broken(rows, *on):
        raise ValueError(why)
