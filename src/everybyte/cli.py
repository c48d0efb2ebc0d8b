"""The command `everybyte`: what the library says, in a shell."""

import argparse
import json
import sys
from dataclasses import MISSING, asdict, fields

from . import budget as predict
from . import gpus, model, models, units
from .setup import Setup
from .tables import Table


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status: 0, or 2 for bad input, said in one line."""
    options = _parser().parse_args(arguments)
    try:
        report = options.run(options)
    except ValueError as error:
        print(f"everybyte: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 0
    print(json.dumps(report[0]) if options.json else report[1])
    return 0


def _parser():
    parser = argparse.ArgumentParser(prog="everybyte", description="Where the memory of a GPU goes while it trains.")
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(name, run, help):
        sub = commands.add_parser(name, help=help, description=help)
        sub.add_argument("--json", action="store_true", help="print one JSON value, memory in whole bytes")
        sub.set_defaults(run=run)
        return sub

    command("models", _models, "the models of the catalogue")
    command("gpus", _gpus, "the GPUs of the catalogue")
    command("formulas", _formulas, "the formulas of the book")
    for name, run, help in (
        ("budget", _budget, "predict a training step's memory by formula"),
        ("dry-run", _dry_run, "count it: PyTorch's own step, on tensors without data"),
        ("compare", _compare, "predict and count, side by side"),
    ):
        _add_setup(command(name, run, help))
    return parser


def _add_setup(parser):
    parser.add_argument("model", help="a name from `everybyte models`")
    parser.add_argument(
        "--block", type=int, default=1, help="round each tensor up to so many bytes; CUDA: 512 (default 1)"
    )
    for field in fields(Setup):
        assert field.default is not MISSING
        option = "--" + field.name.replace("_", "-")
        parser.add_argument(option, type=type(field.default), default=field.default, help=f"default {field.default}")


def _configuration(options):
    return model(options.model), Setup(**{f.name: getattr(options, f.name) for f in fields(Setup)})


def _models(_):
    rows = [[m.name, m.parameters, m.layers, m.width, m.heads, m.kv_heads, m.vocabulary] for m in models().values()]
    columns = ["model", "parameters", "layers", "width", "heads", "kv heads", "vocabulary"]
    return [asdict(m) | {"parameters": int(m.parameters)} for m in models().values()], Table(columns, rows)


def _gpus(_):
    rows = [
        [g.name, g.title, units.gib(g.memory), f"{g.bandwidth / 1e9:,.0f} GB/s", f"{g.bf16_flops / 1e12:,.0f} TFLOP/s"]
        for g in gpus().values()
    ]
    return [asdict(g) for g in gpus().values()], Table(["gpu", "", "memory", "bandwidth", "dense 16-bit"], rows)


def _formulas(_):
    from .formulas import registry

    found = [
        {
            "name": f.name, "title": f.title, "unit": f.unit, "expression": str(f.expr),
            "symbols": {e.name: e.meaning for e in f.symbols}, "assumptions": list(f.assumptions),
            "source": f.source, "chapter": f.chapter,
        }
        for f in registry().values()
    ]  # fmt: skip
    return found, Table(
        ["formula", "", "unit", "chapter"], [[f["name"], f["title"], f["unit"], f["chapter"]] for f in found]
    )


def _witness(witness):
    said = witness.as_dict()
    rows = [[name, value, units.text(value)] for group in ("parts", "phases") for name, value in said[group].items()]
    if "peak" in said:
        rows.append([f"peak, at {said['peak_at']}", said["peak"], units.text(said["peak"])])
    return said, Table([said["witness"], "bytes", ""], rows)


def _budget(options):
    return _witness(predict(*_configuration(options), block=options.block))


def _dry_run(options):
    return _witness(_count(options))


def _count(options):
    try:
        from . import dry_run
    except ImportError as error:
        raise ValueError(f"dry-run: {error}; it needs PyTorch: pip install 'everybyte[dryrun]'") from error
    return dry_run(*_configuration(options), block=options.block)


def _compare(options):
    from . import compare

    comparison = compare(predict(*_configuration(options), block=options.block), _count(options))
    return comparison.as_dict(), comparison


if __name__ == "__main__":
    sys.exit(main())
