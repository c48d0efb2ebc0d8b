"""How a witness's bytes are shown, whoever counted them: as a table, in a line, as JSON."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from ..common import checks
from ..common.tables import Table
from ..units import text

#: What a row of `by_owner` has.
OWNED = ("owner", "part", "tensors", "bytes")


class Alive(NamedTuple):
    """One tensor that lives at the peak: its `bytes`, its `part`, its `owner` (parameter or module), the `operation` that made it."""

    bytes: int
    part: str
    owner: str
    operation: str


#: A number in the path of a module, such as that of a layer.
NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def starred(path: str) -> str:
    """The path of a module with * for each number: the same for all layers."""
    return NUMBER.sub("*", path)


@dataclass(frozen=True)
class Counted:
    """What stands for a module of your own as a witness's `model`. `parameters`: how many, shared ones once."""

    name: str
    parameters: int


def heading(witness: str, model, setup) -> dict:
    """With what a witness's JSON begins: who says it, of which model, under which setup."""
    model = {"name": model.name, "parameters": int(model.parameters)}
    return {"witness": witness, "model": model, "setup": setup.as_dict()}


class Witness:
    """A step's bytes. Who is one has `model`, `setup`, `parts` at the peak, `phases`, `peak`, `peak_at`, `host`, `moments` (the ends of phases) and `timeline()`."""

    #: Its name in JSON.
    witness: ClassVar[str]

    @cached_property
    def live(self: Any) -> list[int]:
        """Live bytes while each operation runs."""
        return [sum(parts) for parts in zip(*self.timeline().values(), strict=True)]

    @cached_property
    def peak_operation(self) -> int:
        """The number of the first operation at which the most bytes live."""
        return self.live.index(max(self.live))

    def parts_at(self: Any, phase: str) -> dict[str, int]:
        """Bytes of each part at the end of a phase: `rest`, `after_forward`, `after_backward` or `after_step`."""
        checks.one_of(type(self).__name__, "phase", phase, self.moments)
        return self.moments[phase]

    def table(self: Any) -> Table:
        """Each part at the peak and at the ends of the phases, in bytes."""
        ends = [phase for phase in self.phases if phase != "step"]
        columns = {"at the peak": self.parts} | {name.replace("_", " "): self.parts_at(name) for name in ends}
        names = [part for part in self.parts if any(live.get(part) for live in columns.values())]
        rows = [[part, *(live.get(part, 0) for live in columns.values())] for part in names]
        rows.append(["total", *(sum(live.values()) for live in columns.values())])
        return Table(["part (B)", *columns], rows, self.setup.owned())

    def __repr__(self: Any):
        return (
            f"{type(self).__name__}({self.model.name}: peak {text(self.peak)}, {self.peak:,} B, in the {self.peak_at})"
        )

    def _repr_html_(self):
        return self.table()._repr_html_()

    def as_dict(self: Any) -> dict:
        """As JSON holds it: whole bytes."""
        return (
            heading(self.witness, self.model, self.setup)
            | {
                "parts": self.parts,
                "phases": self.phases,
                "peak": self.peak,
                "peak_at": self.peak_at,
            }
            | {name: more for name, more in (("own", self.setup.taken), ("host", self.host)) if more}
        )


class Followed(Witness):
    """A witness that follows every operation. Who is one has `operations`, (name, phase, owner) each, `by_owner()`, `alive()`, `rank`, and `_found`: a `Found`."""

    @property
    def peak(self: Any) -> int:
        """The most bytes that live at once."""
        return self._found.peak

    @property
    def peak_at(self: Any) -> str:
        """Where in the step the peak is, one of `PEAKS`."""
        return self._found.peak_at

    @property
    def parts(self: Any) -> dict[str, int]:
        """Bytes of each part at the peak; they sum to `peak`."""
        return self._found.parts

    @property
    def moments(self: Any) -> dict[str, dict[str, int]]:
        """The end of a phase, or `rest` -> bytes of each part then."""
        return self._found.moments

    @cached_property
    def phases(self: Any) -> dict[str, int]:
        """Live bytes between steps (`rest`), after each phase, and the most in the optimizer's step (`step`)."""
        return self._found.phases

    def as_dict(self: Any) -> dict:
        """As JSON holds it: whole bytes; with each operation, what lives while it runs, by part, and what lives at the peak, by owner and tensor by tensor."""
        return (
            super().as_dict()
            | ({"rank": self.rank} if self.rank else {})
            | {
                "operations": [list(operation) for operation in self.operations],
                "timeline": {part: line for part, line in self.timeline().items() if any(line)},
                "owners": [dict(zip(OWNED, row, strict=True)) for row in self.by_owner()],
                "alive": [list(alive) for alive in self.alive()],
            }
        )
