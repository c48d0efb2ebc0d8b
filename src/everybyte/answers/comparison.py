"""The witnesses side by side: predicted, counted, measured."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from .. import units
from ..ask.setup import Setup
from ..catalog import Model
from ..catalog import gpu as catalog_gpu
from ..common import checks
from ..common.tables import Shown, Table
from ..step.course import PHASES
from ..theory.budget import budget

#: A model of several steps, or what gives it for a setup.
Shape = Model | Callable[[Setup], Model]


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Shown):
    """Two or more witnesses of the same step.

    Attributes:
        witnesses: name -> a budget, a dry run's trace, a rehearsal, a measurement: each with `parts`, `phases`, `peak` and `peak_at`.
        rows: (what, [bytes of each witness, None where it does not say]) in the order of parts, phases, peak; beside a
            rehearsal, reserved bytes too.
    """

    witnesses: dict[str, Any]
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
                most, difference = max(v for v in values if v is not None), self.differences[what]
                cells = ["–" if v is None else v for v in values]
                rows.append([what, *cells, units.text(most), difference, f"{difference / most:.2%}"])
        return Table(["", *(f"{name} (B)" for name in self.witnesses), "size", "difference (B)", "%"], rows)

    def figure(self):
        """The witnesses' timelines, one below the other on one scale: matplotlib's figure, with its text as `alt`."""
        from .. import draw

        first = next(iter(self.witnesses.values()))
        setup = first.setup
        title = f"{first.model.name}, {setup.precision}, batch {setup.batch}, sequence {setup.sequence}"
        return draw.timelines(self.witnesses, title)

    def as_dict(self) -> dict:
        """As JSON holds it."""
        said = [witness.as_dict() for witness in self.witnesses.values()]
        return {"witnesses": said, "differences": self.differences, "agree": self.agree}


def compare(*witnesses) -> Comparison:
    """Lay predictions, dry runs and measurements of one step side by side.

    Raises:
        ValueError: for fewer than two, for what is no witness, or where their models, setups or roundings differ.
    """
    if len(witnesses) < 2:
        raise ValueError(f"compare.witnesses: {len(witnesses)} given; allowed: two or more")
    for witness in witnesses:
        if not hasattr(witness, "as_dict") or not hasattr(witness, "rounding"):
            raise ValueError(
                f"compare.witnesses: a {type(witness).__name__} is no witness; allowed: what budget or dry_run returns, or a "
                "derivation's .at(batch, sequence)"
            )
    first = witnesses[0]
    unsaid = {name: getattr(first.setup, name) for w in witnesses for name in getattr(w, "unsaid", ())}
    for field, usual in (("model", None), ("setup", None), ("rounding", None), ("rank", 0)):
        for other in witnesses[1:]:
            theirs = other.setup.replace(**unsaid) if field == "setup" else getattr(other, field, usual)
            if theirs != getattr(first, field, usual):
                raise ValueError(
                    f"compare.{field}: {getattr(other, field, usual)!r} is not the first witness's {getattr(first, field, usual)!r}; "
                    "allowed: witnesses of one and the same step"
                )
    said = [w.as_dict() for w in witnesses]
    rows = []
    for group in ("parts", "phases"):
        rows += [(name, [s[group].get(name) for s in said]) for name in dict.fromkeys(chain(*(s[group] for s in said)))]
    rows.append(("peak", [s.get("peak") for s in said]))
    names = [s["witness"] for s in said]
    if "rehearse" in names:  # an allocator ran: beside what it reserved, what the others simulate
        rows.append(("reserved", [getattr(w, "reserved", None) for w in witnesses]))
    if len(set(names)) < len(names):
        names = [f"{name} {i}" for i, name in enumerate(names, 1)]
    return Comparison(dict(zip(names, witnesses, strict=True)), rows)


def _steps(model, setups):
    """(name, model, setup) of several steps."""
    return [(name, model(setup) if callable(model) else model, setup) for name, setup in setups.items()]


def side_by_side(model: Shape, setups: Mapping[str, Setup], runs=None) -> Table:
    """The peaks of several steps: predicted, counted by the dry run, measured, and what is left between the last two.

    On a GPU, what was measured is what PyTorch's allocator was asked for, less cuBLAS's workspaces, which stand beside it with what was
    allocated and reserved for it. On a CPU it is the storages of the tensors.

    Args:
        model: of all of them, or what gives it for a setup. setups: name -> setup. runs: `lab.runs` of the same, or None.
    """
    from ..dryrun import dry_run

    found = runs.measured if runs else {}
    on_gpu = any(m.rounding > 1 for m in found.values())
    columns = ["predicted", "dry run", "measured: tensors" if on_gpu else "measured", "left over"]
    columns += ["cuBLAS", "allocated", "reserved"] if on_gpu else []
    rows = []
    for name, shape, setup in _steps(model, setups):
        counted, m = dry_run(shape, setup).peak, found.get(name)
        rest: list[object] = ["not yet recorded", *["–"] * (len(columns) - 3)]
        if m:
            tensors = _tensors(m)
            rest = [tensors, tensors - counted, *([m.workspace, m.allocated_peak, m.reserved_peak] if on_gpu else [])]
        rows.append([name, budget(shape, setup).peak, counted, *rest])
    return Table(["peak (B)", *columns], rows, runs.said if on_gpu and runs else "")


def _tensors(m):
    """The most bytes that a measured step's tensors had at once, as they were asked for."""
    return m.peak if m.rounding == 1 else m.requested_peak - m.baseline - m.workspace


def rehearsed(
    model: Shape, setups: Mapping[str, Setup], gpu: str = "h200", folder=None, phase: str | None = None
) -> Table:
    """Several steps predicted, counted, and as PyTorch's CUDA code asked for them on a GPU that does nothing.

    Args:
        model, setups: as `side_by_side`'s. gpu: whose shipped rehearsals. folder: where they are, by default the book's.
        phase: whose bytes, one of `phases`; by default the peak's, with what was allocated and reserved for it.

    Returns:
        A row for each step. Where no rehearsal of some is shipped, the caption names them and says what records them.

    Raises:
        ValueError: for another phase.
    """
    from ..dryrun import dry_run
    from ..rehearsal import shipped

    if phase is not None:
        checks.one_of("rehearsed", "phase", phase, PHASES)
    shelf, rows, missing = shipped(gpu, folder), [], []
    columns = ["predicted", "dry run", "rehearsed: tensors", "cuBLAS", *([] if phase else ["allocated", "reserved"])]
    for name, shape, setup in _steps(model, setups):
        said = [_bytes(witness(shape, setup), phase) for witness in (budget, dry_run)]
        found = shelf.found.get((shape, setup)) if shelf and not shelf.stale else None
        missing += [] if found else [f"{name} ({shape.name})"]
        if found is None or found.oom:
            rest: list[object] = ["out of memory" if found else "not rehearsed", *["–"] * (len(columns) - 3)]
        else:
            more = [] if phase else [found.allocated, found.reserved]
            rest = [_bytes(found, phase) - found.workspace, found.workspace, *more]
        rows.append([name, *said, *rest])
    versions = f" as on {catalog_gpu(gpu).title}, PyTorch {shelf.head['torch']}: no GPU" if shelf else ""
    what = f"{phase or 'peak'} (B)".replace("_", " ")
    reserved = "" if phase or not shelf else "; reserved: what the allocator holds, freed blocks that it keeps too"
    return Table(
        [what, *columns], rows, f"Rehearsed{versions}, and nothing is measured{reserved}{_unknown(missing, shelf, gpu)}"
    )


def _unknown(names, shelf, gpu):
    """What a table of rehearsals says of the steps that it has none of."""
    if not names:
        return ""
    why = "the reference step has changed since those on" if shelf and shelf.stale else "none on"
    return (
        f". Not rehearsed: {', '.join(names)}; {why} {gpu}'s shelf (labs/rehearsals/{gpu}.jsonl). `everybyte rehearse --set-up "
        f'--grid --gpu {gpu}` records the steps of the labs\' grid; `eb.rehearse(model, setup, gpu="{gpu}")` rehearses any other'
    )


def _bytes(witness, phase):
    return witness.phases[phase] if phase else witness.peak


def everyone(said: Mapping[str, int], model: Model, setup: Setup, runs=None) -> Table:
    """What everyone says of the peak of one step: others, the formula, the dry run, a GPU; each over the dry run's.

    Args:
        said: who -> bytes, what others say. runs: `lab.runs` of this step alone, or None.

    Raises:
        ValueError: where `runs` has not one step, or another one than this.
    """
    from ..dryrun import dry_run

    counted = dry_run(model, setup).peak
    who = {**said, "this book, by formula": budget(model, setup).peak, "this book, by dry run": counted}
    rows = [(name, *_beside(peak, counted)) for name, peak in who.items()]
    found = list(runs.found.values()) if runs else [None]
    if len(found) != 1 or (found[0] and (found[0].model, found[0].setup) != (model, setup)):
        raise ValueError("everyone.runs: not of this step; allowed: lab.runs of this step alone, or None")
    (m,) = found
    if m is None or m.device["type"] == "cpu":
        rows.append(("a GPU", "not yet recorded on a GPU", "–"))
    elif m.status == "measured":
        rows.append((m.device["name"], *_beside(_tensors(m), counted)))
    else:
        rows.append((m.device["name"], "out of memory" if m.oom else m.status, "–"))
    return Table(["who", "peak", "over the dry run"], rows)


def _beside(peak, counted):
    return units.text(peak, decimal=True, digits=1), f"{peak / counted:.2f} times"


def concluded(model: Shape, setups: Mapping[str, Setup], runs) -> str:
    """A sentence: of how many steps a GPU was asked for the predicted bytes, and how far the others are; or that none is recorded.

    Args:
        model, setups, runs: as `side_by_side`'s.
    """
    steps = _steps(model, setups)
    found = {name: m for name, m in runs.measured.items() if m.rounding > 1}
    if not found:
        return f"No GPU is on record here: the peaks of these {len(steps)} steps are predicted, and the dry run counts the same."
    far = [_tensors(found[name]) - budget(shape, setup).peak for name, shape, setup in steps if name in found]
    most = max(map(abs, far))
    rest = f"; the others differ by up to {most:,} B" if most else ": 0 bytes are left over"
    first = next(iter(found.values()))
    return (
        f"Of {len(steps)} steps {len(found)} were measured ({first.device['name']}, {first.date[:10]}), and the tensors of "
        f"{far.count(0)} took the predicted bytes{rest}."
    )


def kernels(m) -> int:
    """What kernels take for themselves above the tensors at the peak, where the rules of `formulas.workspaces` reach; else 0."""
    from ..formulas.workspaces import requested

    try:
        found, gpu = budget(m.model, m.setup), catalog_gpu(m.device["gpu"])
        return 0 if m.setup.adapters else requested(found, gpu)[0] - 2 * gpu.cublas_workspace - found.peak
    except ValueError:
        return 0


def gaps(measurement) -> Table:
    """From the prediction to what a GPU says of the same step, each gap by its name; what no name explains stands alone.

    Raises:
        ValueError: where the step was not measured to its end, or not on a GPU.
    """
    m = measurement
    if m.status != "measured" or m.rounding == 1:
        raise ValueError(f"gaps.measurement: {m.status} on {m.device['type']}; allowed: one measured on a GPU")
    exact, rounded = (budget(m.model, m.setup, rounding).peak for rounding in (1, m.rounding))
    blocks = m.allocated_peak - m.requested_peak
    own = kernels(m)
    unnamed = m.peak - exact - blocks - m.workspace - own
    unsplit = "allocated above requested: a rest up to 1 MiB stays with its block"
    steps = [
        ("predicted: the tensors, as asked for", exact, "the budget"),
        (f"each rounded up to a multiple of {m.rounding} B", rounded - exact, "the budget, rounded"),
        ("blocks that were not split", blocks - (rounded - exact), unsplit),
        ("cuBLAS's and cuBLASLt's workspaces", m.workspace, "measured: what clearing them gave back"),
        ("kernels' own memory", own, "by their sources, above the tensors where the most is asked for"),
        ("without a name", unnamed, "what is left: to be explained, never fitted"),
        ("measured: allocated at the peak", m.peak, "torch.cuda.max_memory_allocated, above the baseline"),
        ("kept by the allocator for later", m.reserved_peak - m.allocated_peak, "reserved above allocated"),
    ]
    if m.driver_used is not None:  # it was alone on its GPU
        used = m.driver_used["cuda"] - (m.reserved_peak if m.reserved_at_end is None else m.reserved_at_end)
        why = "the driver's count above what was reserved when it was asked"
        steps.append(("context, libraries, other processes", used, why))
    rows = [[what, size, "-" * (size < 0) + units.text(abs(size)), why] for what, size, why in steps]
    return Table(["", "bytes", "size", "from"], rows, f"{m.device['name']}, {m.date[:10]}")
