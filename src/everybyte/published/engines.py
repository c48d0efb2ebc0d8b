"""What inference engines printed as they started, held against `everybyte.answers.engines`: `engines.toml` beside."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from .. import units
from ..answers.engines import Engine, EngineServing, served
from ..catalog import Gpu, Model, gpu, model
from ..common import files
from ..common.tables import Table

_GIB = units.UNITS["GiB"]
#: What is printed -> a prediction of it, from what an engine decides.
_PREDICTED = {
    "loaded": lambda found: sum(found.engine.standing(found.model).values()) / _GIB,
    "profile": lambda found: sum(found.engine.profiled(found.model, found.gpu).values()) / _GIB,
    "pages": lambda found: found.pages / _GIB,
    "blocks": lambda found: found.blocks,
    "tokens": lambda found: found.tokens,
    "requests": lambda found: float(found.most),
    "needed": lambda found: found.each * found.pool.bytes / _GIB,
}  # fmt: skip


@dataclass(frozen=True)
class Printed:
    """A number that an engine printed, and what is predicted of it.

    Attributes:
        run: its name here. what: `loaded`, `profile`, `pages`, `needed` in GiB; `blocks`, `tokens`, `requests` counted.
        stated: as printed. least, most: the prediction, for the bytes that the log rounds to what it says; the same where nothing is rounded.
        cause: why they part, if they do.
    """

    run: str
    source: str
    what: str
    stated: str
    least: float
    most: float
    cause: str

    @property
    def number(self) -> float:
        """The number printed."""
        return float(self.stated.split()[0])

    @property
    def half(self) -> float:
        """Half of its last digit."""
        digits = self.stated.split()[0].partition(".")[2]
        return 0.5 / 10 ** len(digits) if digits else 0.0

    @property
    def apart(self) -> float:
        """What is predicted less what is printed, from the nearer end; 0 within the last digit."""
        low, high = self.least - self.number - self.half, self.most - self.number + self.half
        return low if low > 0 else high if high < 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class EngineRun:
    """A start of an engine that somebody published. Fields as in `engines.toml`."""

    id: str
    source: str
    version: str
    model: Model
    gpu: Gpu
    context: int
    engine: Mapping
    printed: Mapping
    cause: str = ""

    def predicted(self, pages: int | None = None) -> EngineServing:
        """What is predicted; pages: other bytes for them than the log says."""
        said = dict(self.engine) | ({} if pages is None else {"pages": pages})
        return served(self.model, self.gpu, self.context, Engine(**said))

    def compared(self) -> Iterator[Printed]:
        """Each number that it printed beside its prediction."""
        ends = [self.predicted()] * 2
        if "pages" in self.engine and (around := ends[0].engine.pages):
            ends = [self.predicted(max(around + side * _GIB // 200, 0)) for side in (-1, 1)]
        for what, stated in self.printed.items():
            least, most = (_PREDICTED[what](end) for end in ends)
            yield Printed(self.id, self.source, what, str(stated), least, most, self.cause)


@cache
def runs() -> tuple[EngineRun, ...]:
    """Every start of `engines.toml`."""
    said = files.toml(__package__, "engines.toml")
    own = {}
    for name, entry in said["models"].items():
        fields = dict(entry)
        own[name] = model(fields.pop("like")).replace(name=name, **fields)
    found = []
    for name, entry in said["runs"].items():
        fields = dict(entry)
        card, memory, asked = gpu(fields.pop("gpu")), fields.pop("memory", None), fields.pop("model")
        if memory:
            card = replace(card, memory=memory)
        found.append(EngineRun(id=name, model=own.get(asked) or model(asked), gpu=card, **fields))
    return tuple(found)


def table() -> Table:
    """Every number beside its prediction; a difference that the last digit does not explain has its cause."""

    def text(number):
        return f"{number:,.0f}" if number == int(number) else f"{number:.4g}" if number < 1 else f"{number:.3f}"

    rows = []
    for run in runs():
        for one in run.compared():
            said = text(one.least) if one.least == one.most else f"{text(one.least)} to {text(one.most)}"
            rows.append((one.run, one.what, one.stated, said, f"{one.apart:+.3g}" if one.apart else "0"))
    return Table(("engine's start", "what", "printed", "predicted", "apart"), rows)
