"""One rule, a row of a table; and what tries a table's rows on a setup."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter

#: Whose fields a rule may name -> where a setup has it; a model has its own.
_OWNERS = {"": "", "Mesh": "mesh.", "Lora": "adapters.", "Model": "", "Rollout": ""}
Words = str | Callable[..., str]


def _reader(name):
    """(whose field it is, what reads it of a setup, or of a model)."""
    owner, _, field = name.rpartition(".")
    return owner, attrgetter(_OWNERS[owner] + field)


@dataclass(frozen=True, repr=False)
class Rule:
    """A value that does not go with the rest of a setup. What is a function is called with the setup, or the setup and a model.

    Attributes:
        name: the field: `offload` of a setup, `Mesh.stages`, `Lora.base`.
        broken: whether the value does not go with the rest.
        why: in words after the value. allowed: what would go; empty where `why` says what the value needs.
        instead: who answers for what does not go.
    """

    name: str
    broken: Callable
    why: Words = ""
    allowed: Words = ""
    instead: str = ""

    def error(self, *on) -> str:
        """What the ValueError says: the field, the value, why it does not go, what is allowed, and who answers."""
        owner, read = _reader(self.name)
        value = read(on[-1 if owner == "Model" else 0])
        why, allowed = (said(*on) if callable(said) else said for said in (self.why, self.allowed))
        why = why if why[:1] in ",:" else f" {why}"
        said = (
            f"{'' if owner else 'Setup.'}{self.name}: {repr(value) if isinstance(value, str | tuple) else value}{why}"
        )
        return "; ".join(filter(None, [said, allowed and f"allowed: {allowed}", self.instead]))

    def __repr__(self):
        said = [text if isinstance(text, str) else "…" for text in (self.why, self.allowed) if text]
        return f"Rule({self.name}: {'; allowed: '.join(said) or self.instead})"


class _Unlike(Rule):
    def error(self, *on):
        return "; ".join(filter(None, [self.broken(*on), self.instead]))


def unlike(family: str | None = None, instead: str = "") -> Rule:
    """The book's references, or that of one family, build the model; where they do not, the model says the field and why."""
    return _Unlike("Model.family", lambda s, m: m.unlike_reference(family), instead=instead)


@dataclass(frozen=True)
class Group:
    """Rules that hold where something else is so, or always."""

    when: Callable | None
    rules: tuple[Rule, ...]


Table = tuple[Group, ...]


def table(*rules: Rule, when: Callable | None = None, why: Words = "", instead: str = "") -> Table:
    """Rows; `why` and `instead` are those of rows that give none."""
    return (Group(when, tuple(replace(rule, why=rule.why or why, instead=rule.instead or instead) for rule in rules)),)


def only(name: str, *values, allowed: Words = "", **more) -> Rule:
    """The field has one of these values, and no other."""
    (owner, read), (*others, last) = _reader(name), map(repr, values)
    said = f"{', '.join(others)} or {last}" if others else last
    broken = (lambda s, m: read(m) not in values) if owner == "Model" else (lambda s, *_: read(s) not in values)
    return Rule(name, broken, allowed=allowed or said, **more)


def needs(name: str, usual, other: str, *values: str) -> Rule:
    """The field has its usual value where another field has none of these."""
    said = f"needs {other} {' or '.join(map(repr, values))}, not"
    return Rule(
        name, lambda s: getattr(s, name) != usual and getattr(s, other) not in values, lambda s: f"{said} {getattr(s, other)!r}"
    )  # fmt: skip


def multiples(number: int, step: int) -> str:
    """The multiples of `step` next to a number."""
    below, above = number // step * step, -(-number // step) * step
    return f"{below} or {above}" if below else f"{above}"


def first(groups: Table, *on) -> Rule | None:
    """The first rule that a setup breaks; None where it breaks none."""
    for group in groups:
        if group.when is None or group.when(*on):
            for rule in group.rules:
                if rule.broken(*on):
                    return rule
    return None


def broken(groups: Table, *on) -> str | None:
    """What the first rule says that a setup breaks; None where it breaks none."""
    rule = first(groups, *on)
    return rule.error(*on) if rule else None


def check(groups: Table, *on) -> None:
    """Raise ValueError where a setup breaks a rule."""
    if why := broken(groups, *on):
        raise ValueError(why)
