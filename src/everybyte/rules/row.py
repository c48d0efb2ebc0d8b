"""One rule, a row of a table; and what tries a table's rows on a setup."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter

#: Whose fields a rule may name, beside a setup's own -> where a setup has it.
_OWNERS = {"Mesh": "mesh.", "Lora": "adapters."}
Words = str | Callable[..., str]


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
        owner, _, name = self.name.rpartition(".")
        value = attrgetter(_OWNERS.get(owner, "") + name)(on[0])
        why, allowed = (said(*on) if callable(said) else said for said in (self.why, self.allowed))
        why = why if why[0] in ",:;" else f" {why}"
        said = [f"{owner or 'Setup'}.{name}: {repr(value) if isinstance(value, str) else value}{why}"]
        return "; ".join([*said, *[f"allowed: {allowed}"] * bool(allowed), *[self.instead] * bool(self.instead)])

    def __repr__(self):
        said = [text if isinstance(text, str) else "…" for text in (self.why, self.allowed) if text]
        return f"Rule({self.name}: {'; allowed: '.join(said)})"


@dataclass(frozen=True)
class Group:
    """Rules that hold where something else is so. `why` is that of rules that give none."""

    when: Callable | None
    rules: tuple[Rule, ...]

    @classmethod
    def of(cls, when: Callable | None, *rules: Rule, why: Words = "") -> "Group":
        """From rows."""
        return cls(when, tuple(rule if rule.why else replace(rule, why=why) for rule in rules))


def only(name: str, *values, allowed: Words = "", **more) -> Rule:
    """The field has one of these values, and no other."""
    *others, last = map(repr, values)
    said = f"{', '.join(others)} or {last}" if others else last
    return Rule(name, lambda s, *_: getattr(s, name) not in values, allowed=allowed or said, **more)


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


def first(groups: Iterable[Group], *on) -> Rule | None:
    """The first rule that a setup breaks; None where it breaks none."""
    for group in groups:
        if group.when is None or group.when(*on):
            for rule in group.rules:
                if rule.broken(*on):
                    return rule
    return None


def broken(groups: Iterable[Group], *on) -> str | None:
    """What the first rule says that a setup breaks; None where it breaks none."""
    rule = first(groups, *on)
    return rule and rule.error(*on)


def check(groups: Iterable[Group], *on) -> None:
    """Raise ValueError where a setup breaks a rule."""
    if why := broken(groups, *on):
        raise ValueError(why)
