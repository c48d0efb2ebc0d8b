"""The witnesses side by side: predicted, counted, measured."""

from dataclasses import dataclass

from . import units
from .tables import Table


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two or more witnesses of the same step.

    Attributes:
        witnesses: name -> what it says, each with `parts`, `phases`, `peak` and `peak_at`.
        rows: (what, [bytes of each witness, None where it does not say]) in the order of parts, phases, peak.
    """

    witnesses: dict[str, object]
    rows: list[tuple[str, list[int | None]]]

    @property
    def differences(self) -> dict[str, int]:
        """What -> the widest difference in bytes, where at least two witnesses say something."""
        said = {what: [v for v in values if v is not None] for what, values in self.rows}
        return {what: max(v) - min(v) for what, v in said.items() if len(v) > 1}

    @property
    def agree(self) -> bool:
        """Whether all witnesses say the same of all that at least two of them speak of."""
        return not any(self.differences.values())

    def table(self) -> Table:
        """A row for each part, phase and the peak that two witnesses speak of: bytes, difference in bytes and in percent."""
        rows = []
        for what, values in self.rows:
            if what in self.differences and any(values):
                difference = self.differences[what]
                percent = f"{difference / max(v for v in values if v is not None):.2%}"
                cells = ["–" if v is None else v for v in values]
                size = units.text(max(v for v in values if v is not None))
                rows.append([what, *cells, size, difference, percent])
        return Table(["", *(f"{name} (B)" for name in self.witnesses), "size", "difference (B)", "%"], rows)

    def figure(self):
        """The witnesses' timelines, one below the other on one scale: matplotlib's figure, with its text as `alt`."""
        from . import draw

        first = next(iter(self.witnesses.values()))
        setup = first.setup
        title = f"{first.model.name}, {setup.precision}, batch {setup.batch}, sequence {setup.sequence}"
        return draw.timelines(self.witnesses, title)

    def as_dict(self) -> dict:
        """As JSON holds it."""
        said = [witness.as_dict() for witness in self.witnesses.values()]
        return {"witnesses": said, "differences": self.differences, "agree": self.agree}

    def __repr__(self):
        return repr(self.table())

    def _repr_html_(self):
        return self.table()._repr_html_()


def compare(*witnesses) -> Comparison:
    """Lay predictions, dry runs and measurements of one step side by side.

    Raises:
        ValueError: for fewer than two, for what is no witness, or where their models, setups or blocks differ.
    """
    if len(witnesses) < 2:
        raise ValueError(f"compare.witnesses: {len(witnesses)} given; allowed: two or more")
    for witness in witnesses:
        if not hasattr(witness, "as_dict") or not hasattr(witness, "block"):
            raise ValueError(
                f"compare.witnesses: a {type(witness).__name__} is no witness; allowed: what budget or dry_run returns"
            )
    first = witnesses[0]
    for field in ("model", "setup", "block"):
        for other in witnesses[1:]:
            if getattr(other, field) != getattr(first, field):
                raise ValueError(
                    f"compare.{field}: {getattr(other, field)!r} is not the first witness's {getattr(first, field)!r}; "
                    "allowed: witnesses of one and the same step"
                )
    said = [w.as_dict() for w in witnesses]
    rows = []
    for group in ("parts", "phases"):
        for name in dict.fromkeys(name for s in said for name in s[group]):
            rows.append((name, [s[group].get(name) for s in said]))
    rows.append(("peak", [s.get("peak") for s in said]))
    names = [s["witness"] for s in said]
    if len(set(names)) < len(names):
        names = [f"{name} {i}" for i, name in enumerate(names, 1)]
    return Comparison(dict(zip(names, witnesses, strict=True)), rows)
