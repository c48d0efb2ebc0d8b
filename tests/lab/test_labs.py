"""The labs' cells where there is a record: made up here, of every step that they ask for, and read like any other."""

import ast
import json
import os
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest

import everybyte as eb
from everybyte import draw, dryrun, lab
from everybyte.lab import Measurement, Runs, Trainings
from everybyte.lab.measurement import PHASES, WITHIN, model_as_dict
from everybyte.lab.records import append

LABS = Path(__file__).resolve().parents[2] / "labs"
NOTEBOOKS = sorted(LABS.glob("0[12345]_*.ipynb"))
EXTRA = 70_000_000  # what a GPU would have above the prediction


def steps(model, setups):
    return {name: (model(setup) if callable(model) else model, setup) for name, setup in setups.items()}


def made_up(said, model, setup, rounding, options=None):
    """A measurement of a step as it might be: the prediction, and what a GPU adds."""
    switches = {name: value for name, value in (options or {}).items() if name in ("tf32", "expandable", "limit")}
    recipe = (options or {}).get("recipe")
    if recipe:
        rows = [[recipe.steps * i // 10, 4.0 - i / 10, 1.0 * i] for i in range(1, 11)]
        said = said | {"learning": {"recipe": recipe.as_dict(), "asked": recipe.steps, "validation": rows}}
    predicted = eb.budget(model, setup, rounding)
    peak = predicted.peak + (EXTRA if rounding > 1 else 0)
    counts = {f"{count}_peak": peak for count in ("allocated", "requested", "active", "reserved")}
    counts["requested_peak"] = eb.budget(model, setup).peak + peak - predicted.peak
    return Measurement.from_dict(
        said
        | {"model": model_as_dict(model), "setup": setup.as_dict(), "rounding": rounding, "peak": peak, "step_ms": 12.5}
        | {"phases": {p: predicted.phases[p] for p in PHASES}, "peaks": dict.fromkeys(WITHIN, peak), "workspace": 2**26}
        | {"loss": [7.0, None if setup.dtypes.loss_scaling else 6.9, *(6.0 - i / 10 for i in range(20))]}
        | {"driver_used": {"cuda": peak + 10**9, "nvml": None}}
        | {"device": said["device"] | {"type": "cuda" if rounding > 1 else "cpu"}}
        | counts
        | {"settings": {"asked": switches}}
    )


def cells(path):
    return [c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]


def shown(source, names):
    """Run a cell as a notebook does: what its last expression is."""
    *body, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        body, last = [*body, last], None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)  # noqa: S102 the book's own cells
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


@pytest.fixture
def asked(tmp_path, monkeypatch, said):
    """Steps asked of a GPU; each is in the record when it is looked for. The CPU's are made up too: others run them."""
    asked, real, path = [], lab.runs, tmp_path / "records" / "made-up.jsonl"
    path.parent.mkdir()

    def runs(model, setups, device=None, **options):
        wanted = steps(model, setups)
        if device == "cpu":
            return Runs("Measured here, on the CPU", {n: made_up(said, *step, 1) for n, step in wanted.items()}, True)
        for step in wanted.values():
            asked.append((*step, options))
            append(path, made_up(said, *step, 512, options))
        return real(model, setups, device, **options)

    real_trainings = lab.trainings

    def trainings(model, setups, recipe, seeds=(0,), device=None, tf32=False, **options):
        if device == "cpu":
            one = next(iter(recipe.values())) if isinstance(recipe, dict) else recipe
            lines = {n: made_up(said, model, s, 1, {"recipe": one}) for n, s in setups.items()}
            ranked = [
                replace(m, ranks=[{"rank": r, "loss": m.loss, "peak": m.peak} for r in (0, 1)]) for m in lines.values()
            ]
            return Trainings("Measured here, on the CPU", {n: [m] for n, m in zip(lines, ranked, strict=True)}, True)
        each = recipe if isinstance(recipe, dict) else dict.fromkeys(setups, recipe)
        for name, setup in setups.items():
            for seed in seeds:
                how = {"recipe": replace(each[name], seed=seed), "tf32": tf32}
                asked.append((model, setup, how))
                append(path, made_up(said, model, setup, 512, how))
        return real_trainings(model, setups, recipe, seeds, device, tf32=tf32, **options)

    monkeypatch.setattr(lab, "trainings", trainings)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERYBYTE_RECORD_ONLY", "1")
    monkeypatch.setattr(lab, "runs", runs)
    monkeypatch.setattr(dryrun, "dry_run", eb.budget)  # equal, and quicker
    return asked


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_with_a_record_every_cell_shows_it(path, asked, monkeypatch, capsys):
    pictures = []
    monkeypatch.setattr(draw, "show", lambda fig, alt=None: pictures.append(alt or fig.alt))
    names = {"__name__": "__main__"}
    said = "\n".join(repr(shown(source, names)) for source in cells(path)) + capsys.readouterr().out
    assert "Recorded on made up, 2001-01-01, PyTorch 0" in said and "Not yet recorded" not in said
    assert "not yet recorded" not in said + "".join(pictures)
    assert "without a name" in said and f"{EXTRA - 2**26:,}" in said
    if path.stem != "04_fsdp":  # one GPU that stands for many sends nothing: its time and its loss are nobody's
        assert any("over milliseconds a step" in alt and "at 12.5" in alt for alt in pictures)
    assert any("over steps: the validation loss of" in alt for alt in pictures)
    # What the labs ask for, the grid measures: the same steps with the same switches, and as many of them where they are
    # timed or the loss is followed. Of many GPUs one alone has no time to show, nor has a step that a limit ends.
    grid = {}
    for c in lab.grid():
        key = (c.model, c.setup, c.tf32, c.limit, c.recipe)
        grid[key] = max(c.steps, grid.get(key, 0))
    for model, setup, options in asked:
        key = (model, setup, options.get("tf32", False), options.get("limit"), options.get("recipe"))
        assert key in grid
        assert setup.gpus > 1 or options.get("limit") or options.get("steps", 5) <= grid[key]


#: Labs of which the record lacks a training run, and that say so.
LACKING = ()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_what_is_stored_claims_no_gpu(path):
    notebook = nbformat.read(path, as_version=4)
    outputs = json.dumps([c.get("outputs", []) for c in notebook.cells if c.cell_type == "code"])
    recorded = any((LABS / "records").glob("*.json*"))
    missing = not recorded or path.stem in LACKING
    assert ("Not yet recorded on a GPU" in outputs, "Recorded on" in outputs) == (missing, recorded)
    assert "Measured here, on the CPU" in outputs and os.sep.join(["", "home"]) not in outputs
