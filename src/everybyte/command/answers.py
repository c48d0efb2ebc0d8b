"""A function for each command, by its name. It returns (the answer as JSON, in words, the exit status)."""

import json
from contextlib import nullcontext
from dataclasses import asdict, fields
from pathlib import Path

import everybyte as eb

from .. import units
from ..answers.headroom import ROUNDING
from ..ask.setup import Setup
from ..common import checks, files, interrupts, terminal
from ..common.tables import Table
from ..theory.budget import budget as predict
from ..theory.budget import not_derived
from . import completion as shells
from . import given, rehearsing, words


def _said(found, shown=None, yes=True):
    return found.as_dict(), found if shown is None else shown, 0 if yes else 1


def _of(setup):
    """A line: what of a setup sizes a step, and what is not as usual."""
    told = {"batch", "sequence", "precision", "optimizer", *setup.changed()}
    return "for " + ", ".join(f"{name} {getattr(setup, name)}" for name in setup.as_dict() if name in told)


def completion(options):
    checks.one_of("completion", "shell", options.shell, shells.SHELLS)
    taken = shells.words(
        words.parsers()[1], words.ALLOWED | {"model": eb.models(), "predicted": eb.models(), "gpu": eb.gpus()}
    )
    text = shells.script(options.shell, taken, {name: said["help"] for name, said in words.SAID["commands"].items()})
    return {"shell": options.shell, "script": text}, text, 0


def schema(options):
    checks.one_of("schema", "answer", options.answer, words.SAID["schemas"])
    said = words.schemas()[options.answer]
    return said, json.dumps(said, indent=1), 0


def models(_):
    found = eb.models().values()
    rows = [[m.name, m.parameters, m.layers, m.width, m.heads, m.kv_heads, m.vocabulary] for m in found]
    columns = ["model", "parameters", "layers", "width", "heads", "kv heads", "vocabulary"]
    return [asdict(m) | {"parameters": int(m.parameters)} for m in found], Table(columns, rows), 0


def gpus(_):
    def row(g):
        rates = (f"{g.bandwidth / 1e9:,.0f} GB/s", *(f"{f / 1e12:,.0f} TFLOP/s" for f in (g.bf16_flops, g.fp32_flops)))
        return [g.name, g.title, units.gib(g.memory), *rates]

    found = eb.gpus().values()
    columns = ["gpu", "", "memory", "bandwidth", "dense 16-bit", "fp32"]
    return [asdict(g) for g in found], Table(columns, [row(g) for g in found]), 0


def formulas(_):
    from ..formulas import registry

    found = [
        {
            "name": f.name, "title": f.title, "unit": f.unit, "expression": str(f.expr),
            "symbols": {e.name: e.meaning for e in f.symbols}, "assumptions": list(f.assumptions),
            "source": f.source, "chapter": f.chapter,
        }
        for f in registry().values()
    ]  # fmt: skip
    rows = [[f["name"], f["title"], f["unit"], f["chapter"]] for f in found]
    return found, Table(["formula", "", "unit", "chapter"], rows), 0


def claims(_):
    found = [eb.settle(claim) for claim in terminal.bar(iterable=eb.claims().values(), desc="claims")]
    rows = [[s.claim.id, s.claim.claim, s.stated_text, s.text, s.verdict, s.claim.chapter] for s in found]
    return [s.as_dict() for s in found], Table(["id", "claim", "stated", "computed", "verdict", "chapter"], rows), 0


def budget(options):
    return _witness(predict(*given.configuration(options), rounding=options.rounding, rank=options.rank))


def dry_run(options):
    subject, setup, batch = given.subject(options)
    with given.torch("dry-run"):
        count = eb.dry_run
    batch = given.inputs(batch, setup, given.sizes(options))
    return _witness(count(subject, setup, options.rounding, batch, options.rank))


def _witness(witness):
    said = witness.as_dict()
    rows = [[name, value, units.text(value)] for group in ("parts", "phases") for name, value in said[group].items()]
    if "workspace" in said["parts"] and said["witness"] == "predict":
        rows[list(said["parts"]).index("workspace")][2] = "no tensor: 0"
    if "peak" in said:
        rows.append([f"peak, at {said['peak_at']}", said["peak"], units.text(said["peak"])])
    rows += [[f"{name}, in the CPU's memory", value, units.text(value)] for name, value in said.get("host", {}).items()]
    return said, f"{Table([said['witness'], 'bytes', ''], rows)}\n{_of(witness.setup)}", 0


def derive(options):
    sizes = given.sizes(options)
    subject, setup, batch = given.subject(options)
    with given.torch("derive"):
        derived = eb.derive
    found = derived(subject, setup, batch, keep=not options.fresh, letters=options.letters, rank=options.rank)
    if sizes and options.letters != "BS":
        raise ValueError(f"--sizes: {next(iter(sizes))} with --letters {options.letters}; allowed: with --letters BS")
    found = found.fixed(**sizes) if sizes else found
    return found.as_dict() | {"latex": found.latex(), "peak": str(found.peak)}, found, 0


def compare(options):
    subject, setup, batch = given.subject(options)
    sizes = given.sizes(options)
    with given.torch("dry-run"):
        compared, derived, count = eb.compare, eb.derive, eb.dry_run
    witnesses = []
    if isinstance(subject, eb.Model) and not (options.derive and not_derived(subject, setup)):
        witnesses.append(predict(subject, setup, rounding=options.rounding, rank=options.rank))
    if options.derive or not isinstance(subject, eb.Model):
        formula = derived(subject, setup, batch)
        witnesses.append(formula.at(setup.batch, setup.sequence, options.rounding, **sizes))
    inputs = given.inputs(batch, setup, sizes)
    found = compared(*witnesses, count(subject, setup, options.rounding, inputs, options.rank))
    return _said(found, yes=found.agree)


def fit(options):
    card, headroom = given.card(options)
    subject, setup, batch = given.subject(options)
    sizes = given.sizes(options)
    found = eb.fit(subject, setup, card, options.vary, headroom, batch=batch, configuration=options.conf, **sizes)
    asked, line, fits = _asked(found, setup) if options.vary in options.given else ({}, "", found.fits)
    line = f"\n{_of(found.setup)}{line}"
    if not options.plan:
        return found.as_dict() | asked, f"{found}{line}", 0 if fits else 1
    switches = eb.plan(subject, setup, card, headroom, batch, options.conf or "")
    rungs = [switches.asked, *switches.ladder()]
    if switches.best and switches.best not in rungs:
        rungs.append(switches.best)  # in another precision
    said = found.as_dict() | asked | {"plan": switches.as_dict()}
    return said, f"{found}{line}\n\n{switches.show(rungs)}", 0 if switches.best else 1


def _asked(found, setup):
    """(what JSON holds, the line, whether it fits) of a written value of what varies: it is answered, not passed over."""
    value = getattr(setup, found.vary)
    fits = found.takes(value)
    line = f"\n{found.vary} {value:,}, as asked, {'fits' if fits else 'does not fit'}"
    return {"asked": {"value": value, "fits": fits}}, line, fits


def epoch(options):
    subject, setup, batch = given.subject(options)
    if sizes := given.sizes(options):
        with given.torch("epoch"):
            subject, batch = eb.derive(subject, setup, batch).fixed(**sizes), None
    if options.collate == "tokens" and "batch" in options.given:
        raise ValueError(
            f"--batch: {options.batch} with --collate tokens, which fills batches by --tokens; allowed: without"
        )
    pad_to = options.pad_to[0] if len(options.pad_to) == 1 else options.pad_to
    found = eb.epoch(
        subject, setup, options.lengths, options.collate, options.order, options.gpu, tokens=options.tokens, pad_to=pad_to,
        seed=options.seed, clear=options.clear, most=options.most, configuration=options.conf or "", headroom=given.headroom(options),
        batch=batch,
    )  # fmt: skip
    _drawn(found, options.figure)
    said, shown = found.as_dict(), str(found.table())
    if options.cures:
        cures = found.cures()
        said["cures"] = [dict(zip(cures.columns, row, strict=True)) for row in cures.rows]
        shown = f"{shown}\n\n{cures}"
    return said, shown, 1 if found.failed else 0


def layouts(options):
    card, headroom = given.card(options)
    if options.written is not None:
        checks.one_of("layouts", "--as", options.written, ("torchtitan", "deepspeed"))
    asked = given.asked(options, "most") | {"configuration": options.conf or ""}
    found = eb.layouts(*given.configuration(options), card, headroom, **asked)
    if options.written is None:
        return _said(found, found.report())
    if found.best is None:
        raise ValueError(f"layouts.--as: {checks.shown(options.written)} of no layout: none of {found.tried} fits")
    written = getattr(found.best, options.written)()
    if options.written == "deepspeed":
        return written, json.dumps(written, indent=2), 0
    return {"torchtitan": written}, written, 0


def serve(options):
    card, headroom = given.card(options)
    asked = given.asked(options, "concurrency", "prompt", "cache", "weights", "cache_dtype", "page", "engine")
    found = eb.serve(given.served(options), card, options.context, headroom=headroom, **asked)
    return _said(found, yes=found.fits)


def align(options):
    parts = {name: getattr(options, name) for name in ("reference", "frozen", "rollout")}
    found = eb.align(options.method, *given.configuration(options), options.gpu, **parts)
    shown = f"{found.table()}\n\n{found.timeline()}" if found.rollout else found.table()
    return _said(found, shown, found.fits is not False)


def doctor(options):
    setup = given.setup(options) if options.model else None
    scripts = ("gpus",) if options.script else ()  # how many the script uses
    changed = [f.name for f in fields(Setup) if getattr(options, f.name) != f.default and f.name not in scripts]
    if changed and not options.model:
        option = f"--{changed[0].replace('_', '-')}"
        raise ValueError(f"doctor: {option} without a model; allowed: a name from `everybyte models` after the file")
    evidence = given.evidence(options.file)
    from ..evidence.pickles import is_pickle

    said = eb.snapshot(evidence) if is_pickle(evidence) else evidence.decode(errors="replace")
    ran = given.named(options.model) if options.model else None
    if options.script and not options.rehearse:
        raise ValueError("doctor: a script without --rehearse; allowed: doctor FILE --rehearse -- python train.py ...")
    found = eb.doctor(said, ran, setup, options.gpu, options.conf)
    if options.rehearse:
        from ..answers.rehearsing import rehearsed

        asked = {"memory": given.size("--memory", options.memory), "gpus": options.gpus, "steps": options.steps}
        found = rehearsed(found, options.gpu, options.script, ran, setup, say=terminal.note, **asked)
    return _said(found)


def snapshot(options):
    found = eb.snapshot(options.file)
    _drawn(found.main, options.figure)
    return _said(found)


def explain(options):
    if options.predicted in eb.models() or given.is_configuration(options.predicted):
        options.model = options.predicted
        predicted = given.configuration(options)
    else:
        predicted = given.told(options, Path(options.predicted))
    seen = given.evidence("-", "explain.seen") if options.seen == "-" else Path(options.seen)
    found = eb.explain(predicted, seen)
    _drawn(found, options.figure)
    return _said(found)


def _drawn(found, path):
    """Write a value's picture, where a path is given."""
    if path:
        with interrupts.importing():  # and matplotlib's C++ makes a ValueError of a Ctrl-C
            from ..draw import png

            drawn = png(found.figure())
        with files.whole(path) as file:
            file.write(drawn)


def measure(options):
    from ..lab import Failed

    try:
        found = eb.measure(*given.configuration(options), options.device, alone=options.alone)
    except Failed as error:
        raise ValueError(f"measure: {error}") from error
    return _said(found, found.table())


def rehearse(options):
    from .. import rehearsal

    again, prepares = options.recheck is not None, options.set_up or options.install
    runs = sum(map(bool, (options.script, options.grid, again)))
    if runs + options.list > 1 or not (runs or prepares or options.list or options.torch or options.packages):
        allowed = "everybyte rehearse -- python train.py ..., --grid, --recheck, --set-up, --install, or --list"
        raise ValueError(f"rehearse: nothing to run, or too much; allowed: {allowed}")
    if options.without_triton and not options.set_up:
        raise ValueError("rehearse --without-triton: nothing is installed; allowed: with --set-up")
    if options.list:
        found = rehearsal.versions.there()
        return found, rehearsal.versions.table(found), 0
    folder = _environment(options)
    if not runs:
        where = rehearsal.place.find(folder)
        return where.manifest | {"folder": str(where.folder)}, _ready(where), 0
    if rehearsal.place.real_gpu():
        terminal.note("This machine has a GPU: `everybyte measure` says more than a rehearsal.")
    if again or options.grid:
        return _grid(options, again, folder)
    return rehearsing.script(options, folder)


def _environment(options):
    """The folder of the environment that the options name, set up where they say so; None for the default."""
    from .. import rehearsal

    folder = None
    if options.packages and options.install:
        raise ValueError(
            "rehearse --install: beside --with, which has a folder for each set of packages; allowed: one of them"
        )
    if options.set_up:
        folder = rehearsal.versions.set_up(options.torch, triton=not options.without_triton, say=terminal.note)
    if options.torch or options.packages:
        folder = rehearsal.environment(options.torch, options.packages, say=terminal.note)
    if options.install:
        rehearsal.install(options.install, folder, say=terminal.note)
    return folder


def _ready(where):
    """What an environment has, in a line."""
    packages = "".join(f", {name} {version}" for name, version in where.manifest.get("packages", {}).items())
    return f"{where.folder.name}: PyTorch {where.manifest['torch']}{packages}, no GPU and nothing of NVIDIA's"


def _grid(options, again, folder):
    """Rehearse the labs' grid, or repeat some of its runs."""
    from .. import rehearsal

    asked = {"workers": options.workers, "say": terminal.note, "folder": folder}
    if again:
        shelf = rehearsal.recheck(options.gpu, options.out, count=options.recheck, **asked)
        said = f"{shelf.head['rechecked']} of {len(shelf.found)} steps ask for what stands there"
        return shelf.head, f"{shelf.path}: {said}", 0
    shelf = rehearsal.rehearse_grid(options.gpu, options.out, **asked)
    steps = len(shelf.found)
    return shelf.head | {"rehearsed": steps}, f"{shelf.path}: {steps} steps rehearsed, no GPU", 0


def _guarded(options):
    if not options.script:
        raise ValueError(
            f"{options.command}: nothing to run; allowed: everybyte {options.command} ... -- python train.py ..."
        )
    return {name: getattr(options, name) for name in ("gpu", "gpus", "alone", "steps")} | {"carried": options.carry}


def diff(options):
    from ..guard import comment
    from ..guard import diff as compared

    asked, over = _guarded(options), given.size("--over", options.over)
    largest = given.span("--largest", options.largest) if options.largest else None
    found = compared(options.base, options.head, options.script, largest=largest, **asked)
    shown = found if options.comment is None else comment(found, options.comment)
    return found.as_dict(), shown, 0 if over is None or found.change.bytes <= over else 1


def bisect(options):
    from ..guard import bisect as searched

    asked, over = _guarded(options), given.size("--over", options.over) or 0
    found = searched(options.good, options.bad, options.script, over=over, say=terminal.note, **asked)
    return found.as_dict(), found, 0 if found.moved else 1


def published(options):
    from ..published.predicting import published as beside

    found = beside(
        options.only, again=options.again, workers=options.workers, scheduler=options.scheduler, say=terminal.note
    )
    return _said(found, found.gaps() if options.gaps else found.table(), not found.faults)


def record(options):
    from ..lab import Failed, estimate, grid
    from ..lab import record as recorded
    from ..lab.process import Worker

    def need(model, setup):
        return predict(model, setup, ROUNDING).peak

    if options.list:
        table = estimate(grid(options.only), eb.gpu(options.gpu), need)
        return [dict(zip(table.columns, row, strict=True)) for row in table.rows], table, 0
    out = options.out or ("build/rehearsed" if options.rehearse else "labs/records")
    try:
        with _starter(options.gpu) if options.rehearse else nullcontext(Worker) as start:
            found = recorded(
                out, options.minutes, options.only, options.device, need=need, start=start, jobs=options.jobs
            )
    except (Failed, ImportError, OSError) as error:
        raise ValueError(f"record: {error}") from error
    except KeyboardInterrupt as error:
        error.args = (f"what was measured is in {out}; the same command goes on from there",)
        raise
    return _said(found)


def _starter(gpu):
    """A context in which a recording's workers start on stubs of a GPU."""
    from ..rehearsal import devices, place, steps

    where = place.find()
    return steps.starter(where, devices.find(gpu, where.manifest["capabilities"]))
