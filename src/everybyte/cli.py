"""The command `everybyte`: what the library says, in a shell."""

import argparse
import json
import os
import shlex
import sys
import traceback
from contextlib import contextmanager
from dataclasses import asdict, fields

from . import Gpu, Model, __version__, checks, completion, files, gpu, gpus, interrupts, model, models, terminal, units
from . import budget as predict
from .alignment import MODELS, Rollout, align
from .budget import not_derived
from .fit import VARY
from .headroom import ROUNDING, Headroom
from .mesh import Mesh
from .objectives import REFERENCES
from .serving import CACHE_TYPES, CACHES, WEIGHTS
from .setup import CHOICES, LIMITS, Lora, Setup
from .tables import Table


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status, one of `STATUSES`. What is wrong is said in one line."""
    terminal.hold()
    endings = interrupts.Endings(exits=False)
    try:
        with endings:
            return _run(arguments)
    except KeyboardInterrupt as error:  # at its very ends
        endings.undo()
        return _interrupted(error)


def _run(arguments):
    options = None
    try:
        arguments = sys.argv[1:] if arguments is None else arguments
        if not arguments:
            terminal.write(f"{_first()}\n", sys.stdout)
            return 0
        options = _options(arguments)
        said, table = options.run(options)
        terminal.write(f"{json.dumps(said) if options.json else terminal.shown(table, sys.stdout)}\n", sys.stdout)
        return getattr(options, "status", 0)  # a script's own, where one was run
    except ValueError as error:
        terminal.complain(str(error))
        return 2
    except KeyboardInterrupt as error:
        return _interrupted(error)
    except BrokenPipeError:  # whoever read the output has enough
        terminal.no_more(sys.stdout)
        return 0
    except OSError as error:  # a full disk, a file that cannot be written
        terminal.no_more(sys.stdout)
        where = f": {error.filename}" if error.filename else ""
        terminal.complain(f"{error.strerror or error}{where}")
        return 2
    except Exception as error:
        if os.environ.get("EVERYBYTE_TRACEBACK"):
            raise
        place = _theirs(error, options)
        whose = f"--module: {place}" if place else "this is a mistake of ours"
        said = ": ".join(filter(None, (type(error).__name__, str(error))))
        terminal.complain(
            " ".join(f"{whose}, {said}; EVERYBYTE_TRACEBACK=1 before the same command says where".split())
        )
        return 2 if place else 70


def _interrupted(error):
    said, status = interrupts.told(error)
    terminal.complain(said)
    return status


def _theirs(error, options):
    """Where in a module of the user's own an error arose; "" where it did not."""
    if not getattr(options, "module", None):
        return ""
    file = os.path.abspath(options.module.rpartition(":")[0])
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if os.path.abspath(f.filename) == file]
    if lines:
        return f"{os.path.basename(file)}, line {lines[-1]}"
    notes = [note for note in getattr(error, "__notes__", []) if note.startswith("everybyte.dry_run: ")]
    return notes[0].removeprefix("everybyte.dry_run: ").partition(". ")[0] if notes else ""


#: What the command returns, and when.
STATUSES = {
    0: "an answer",
    1: "the answer is no: nothing fits, or witnesses differ",
    2: "bad input, or a file that cannot be read or written",
    70: "a mistake of ours",
    130: "Ctrl-C",
    143: "SIGTERM, and other signals likewise",
}
#: What `everybyte` alone runs.
FIRST = ("budget", "gpt2", "--batch", "8", "--sequence", "1024", "--precision", "bf16-mixed")


def _first():
    options = _options(FIRST)
    lines = [
        f"A first example: everybyte {' '.join(FIRST)}", "", terminal.shown(options.run(options)[1], sys.stdout), "",
        "The same counted by PyTorch, without a GPU: dry-run in place of budget. What fits a GPU:", "",
        "  everybyte fit gpt2 --gpu rtx-4090 --precision bf16-mixed", "",
        "everybyte --help lists the commands, everybyte fit --help a command's options.",
    ]  # fmt: skip
    return "\n".join(lines)


class _Parser(argparse.ArgumentParser):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.register("type", int, _number(int, "a whole number, such as 1024"))
        self.register("type", float, _number(float, "a number, such as 0.1"))

    def error(self, message):
        raise ValueError(f"{message}; see {self.prog} --help")

    def _print_message(self, message, file=None):
        terminal.write(message, file or sys.stdout)


def _number(kind, allowed):
    """What makes a number of a command's text."""

    def read(text):
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{checks.shown(text)}; allowed: {allowed}") from None

    return read


def _options(arguments):
    parser = _Parser(
        prog="everybyte",
        description="Where the memory of a GPU goes while it trains.",
        epilog="exit status: " + "; ".join(f"{status} {said}" for status, said in STATUSES.items())
        + "; of rehearse, the script's own",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"everybyte {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(name, run, help):
        sub = commands.add_parser(name, help=help, description=help)
        sub.add_argument("--json", action="store_true", help="print one JSON value, memory in whole bytes")
        sub.set_defaults(run=run, command=name)
        return sub

    command("models", _models, "the models of the catalog")
    command("gpus", _gpus, "the GPUs of the catalog")
    command("formulas", _formulas, "the formulas of the book")
    command("claims", _claims, "what five articles say, against what is so")
    for name, run, help in (
        ("budget", _budget, "predict a training step's memory by formula"),
        ("dry-run", _dry_run, "count it: PyTorch's own step, on tensors without data"),
        ("compare", _compare, "predict and count, side by side"),
    ):
        sub = command(name, run, help)
        _add_setup(sub, own=name != "budget")
        _add_rank(sub)
        if name == "compare":
            sub.add_argument(
                "--derive", action="store_true", help="also by PyTorch's own formula, as for models of one's own"
            )
    deriving = command("derive", _derive, "a formula of it in batch and sequence, for any model, from its own dry runs")
    _add_setup(deriving, rounding=False, own=True)
    _add_rank(deriving)
    deriving.add_argument("--letters", default="BS", metavar="WHICH",
                          help="all for letters for the model's own dimensions too: of a GPT or a Llama of the catalog (default BS)")  # fmt: skip
    deriving.add_argument("--fresh", action="store_true", help="derive it again, whatever is kept on disk")
    _add_fit(
        command("fit", _fit, "the largest batch or sequence, or the fewest GPUs, that fit a GPU, and what limits it")
    )
    meshing = command(
        "layouts",
        _layouts,
        "the meshes of --gpus GPUs that a model trains on, the fastest first, as many tokens a step",
    )
    _add_gpu(meshing)
    meshing.add_argument(
        "--most", type=int, default=argparse.SUPPRESS, metavar="N", help="how many to find (default 8)"
    )
    meshing.add_argument(
        "--as", dest="written", metavar="WHAT", help="the fastest as a configuration: torchtitan or deepspeed"
    )
    _add_setup(meshing, rounding=False)
    serving = command(
        "serve", _serve, "how many sequences of so many tokens a GPU generates at once, and what they take"
    )
    serving.add_argument("model", help="a name from `everybyte models`")
    _add_gpu(serving)
    serving.add_argument("--context", type=int, required=True, metavar="N", help="tokens of a sequence when it ends")
    for name, kind, help in (
        ("concurrency", int, "sequences at once (default the most that fit)"),
        ("prompt", int, "tokens of the prompt (default all but the last)"),
        ("cache", str, f"{', '.join(CACHES)} (default dynamic)"),
        ("weights", str, f"{', '.join(WEIGHTS)} (default bf16)"),
        ("cache-dtype", str, f"{', '.join(CACHE_TYPES)} (default bf16)"),
        ("page", int, "tokens in a page (default 16)"),
    ):
        serving.add_argument(f"--{name}", type=kind, default=argparse.SUPPRESS, metavar="VALUE", help=help)
    aligning = command("align", _align, "DPO, PPO or GRPO: which models stand on each GPU, and the peak of the step")
    aligning.add_argument("method", help=", ".join(MODELS))
    _add_setup(aligning, rounding=False)
    aligning.add_argument(
        "--gpu", metavar="NAME", help="a name from `everybyte gpus`, or a size as 24GiB: whether it fits"
    )
    aligning.add_argument(
        "--reference", metavar="WHEN", help=f"of dpo, when the reference runs: {', '.join(REFERENCES)} (default after)"
    )
    aligning.add_argument(
        "--frozen", metavar="HOW", help="reference and reward model: whole, sharded or none (default whole)"
    )
    aligning.add_argument("--rollout", type=_reads(Rollout), metavar="TEXT",
                          help="what generates beside the trainer: 'sequences=64 context=4096 weights=copy tensor_parallel=1 asleep=false'")  # fmt: skip
    measuring = command("measure", _measure, "measure it: the same step on this machine's GPU")
    _add_setup(measuring, rounding=False)
    recording = command("record", _record, "measure the labs' grid on this machine's GPU, and keep what it says")
    for sub in (measuring, recording):
        sub.add_argument("--device", metavar="NAME", help="cuda, cuda:1, ..., cpu (default: the first GPU)")
    measuring.add_argument(
        "--alone",
        action="store_true",
        help="of many GPUs measure the first, on one GPU, over collectives that move nothing",
    )
    recording.add_argument("--out", metavar="FOLDER", help="of the records (default labs/records)")
    recording.add_argument("--minutes", type=float, default=9.0, metavar="N", help="time for all of it (default 9)")
    recording.add_argument(
        "--list", action="store_true", help="what would be measured and how long it may take; no GPU needed"
    )
    recording.add_argument(
        "--gpu", default="h200", metavar="NAME", help="for --list and --rehearse, from `everybyte gpus` (default h200)"
    )
    recording.add_argument(
        "--rehearse",
        action="store_true",
        help="on a GPU that does nothing, into build/rehearsed: to see that all of it runs",
    )
    recording.add_argument("--only", nargs="+", default=(), metavar="GROUP", help="groups of the grid (default all)")
    _add_rehearsal(
        command(
            "rehearse", _rehearse, "run a training script, unmodified, on a GPU that does nothing: -- python train.py"
        )
    )
    _add_doctor(command("doctor", _doctor, "what an out-of-memory message or a snapshot says, and what helps this run"))
    looking = command(
        "snapshot", _snapshot, "what lived when the most did, of a memory snapshot; nothing in the file is run"
    )
    looking.add_argument("file", help="what torch.cuda.memory._dump_snapshot wrote, up to 500 MB")
    looking.add_argument("--figure", metavar="FILE.png", help="also a picture: live bytes by part, and the segments")
    completing = command("completion", _completion, "a program for your shell that completes what you type")
    completing.add_argument("shell", help=", ".join(completion.SHELLS))
    script = []
    if arguments[:1] == ["rehearse"] and "--" in arguments:
        place = arguments.index("--")
        arguments, script = arguments[:place], arguments[place + 1 :]
    first = arguments[0]
    if first == "help":
        arguments = [*arguments[1:], "--help"]
    elif not first.startswith("-"):
        checks.one_of("command", "name", first, commands.choices)
    elif not any(option.startswith(first) for option in parser._option_string_actions):
        raise ValueError(
            f"{checks.shown(first)} before the command; allowed: --help, --version; a command's own options stand after it"
        )
    options, unknown = parser.parse_known_args(arguments)
    options.parser, options.helps = parser, {a.dest: a.help for a in commands._choices_actions}
    if options.command == "rehearse":
        options.script = script
    if unknown:
        _refuse(commands.choices[options.command], options.command, arguments[1:], unknown, script)
    return options


def _refuse(parser, command, arguments, unknown, script):
    """Raise ValueError for the first of the words that a command does not know; `script`: what stood after `--`."""
    first = unknown[0]
    if command == "rehearse" and (not first.startswith("-") or first.partition("=")[0] == "--script"):
        place = arguments.index(first)
        words = [first.removeprefix("--script").removeprefix("="), *arguments[place + 1 :], *script]
        words = list(filter(None, words)) or ["train.py"]
        python = ["python"] if words[0].endswith(".py") else []
        right = shlex.join(["everybyte", command, *arguments[:place], "--", *python, *words])
        raise ValueError(
            f"rehearse: {checks.shown(first)} before the --; allowed: the script and its arguments after it, {right}"
        )
    if first.startswith("-"):
        checks.one_of(command, "option", first, [o for o in parser._option_string_actions if o.startswith("--")])
    names = [action.dest for action in parser._actions if not action.option_strings]
    taken = ", ".join(names) or "none"
    raise ValueError(f"{command}: {checks.shown(first)} is a word too many; allowed: {taken}; see {parser.prog} --help")


def _add_rehearsal(parser):
    parser.add_argument("--gpu", default="h200", metavar="NAME", help="from `everybyte gpus` (default h200)")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="how many of them (default 1)")
    parser.add_argument(
        "--alone", action="store_true", help="rank 0 of so many, in one process: collectives move nothing"
    )
    parser.add_argument("--steps", type=int, default=5, metavar="N",
                        help="optimizer steps after which the script is ended; 0 for none (default 5)")  # fmt: skip
    parser.add_argument("--memory", metavar="SIZE", help="of each GPU, as 24GiB (default the catalog's)")
    parser.add_argument("--snapshot", metavar="FILE", help="the allocator's history, for PyTorch's viewer")
    parser.add_argument("--set-up", action="store_true", help="make or mend the environment that it runs in")
    parser.add_argument("--torch", default="2.13.0", metavar="VERSION", help="for --set-up (default 2.13.0)")
    parser.add_argument("--grid", action="store_true", help="rehearse the labs' grid, going on where it stopped")
    parser.add_argument(
        "--recheck",
        type=int,
        metavar="N",
        help="rehearse N steps of the grid again: the reference has changed, and they not",
    )
    parser.add_argument("--out", default="labs/rehearsals", metavar="FOLDER", help="for --grid and --recheck")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="for --grid: steps at once (default 2)")


def _add_doctor(parser):
    parser.add_argument("file", help="the error's text, or a memory snapshot; - for standard input")
    parser.add_argument(
        "model", nargs="?", help="what ran, a name from `everybyte models`: then switches are ranked for it"
    )
    parser.add_argument(
        "--gpu", metavar="NAME", help="a name from `everybyte gpus`; by default the one of that capacity"
    )
    parser.add_argument("--conf", default="", metavar="TEXT", help="the job's PYTORCH_ALLOC_CONF")
    for field in fields(Setup):
        option, help = "--" + field.name.replace("_", "-"), f"{_allowed(field.name)} (default {field.default})"
        parser.add_argument(option, type=_kind(field), default=field.default, metavar="VALUE", help=help)


def _add_setup(parser, rounding=True, own=False):
    if own:
        parser.add_argument("model", nargs="?", help="a name from `everybyte models`; or one of the next two")
        parser.add_argument("--hf", metavar="FILE", help="a Hugging Face model's config.json")
        parser.add_argument("--module", metavar="FILE.py:NAME", help="a function of yours that makes a torch.nn.Module")
        parser.add_argument("--inputs", nargs="+", metavar="NAME=SHAPE:TYPE",
                            help="the arguments of its forward, B and S for batch and sequence: tokens=B,S:int64; and capital letters for dimensions of your own: image=B,3,R,R:float32")  # fmt: skip
        parser.add_argument(
            "--sizes", nargs="+", default=(), metavar="LETTER=SIZE", help="of letters of your own: R=224"
        )
    else:
        parser.add_argument("model", help="a name from `everybyte models`")
    if rounding:
        parser.add_argument("--rounding", type=int, default=1, metavar="BYTES",
                            help="round each tensor up to a multiple of so many bytes; CUDA: 512 (default 1)")  # fmt: skip
    for field in fields(Setup):
        option = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(option, action="store_true", help="a switch, off where it is not given")
            continue
        allowed = _allowed(field.name)
        usual = {"optimizer_impl": "the optimizer's first", "adapters": "none"}.get(field.name, field.default)
        help = f"{allowed} (default {usual})"
        parser.add_argument(option, type=_kind(field), default=field.default, metavar="VALUE", help=help)


def _add_rank(parser):
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="which of several GPUs (default 0)")


def _add_fit(parser):
    _add_gpu(parser)
    parser.add_argument(
        "--vary", default="batch", metavar="FIELD", help=f"{', '.join(VARY)}, or a letter of --inputs (default batch)"
    )
    parser.add_argument("--plan", action="store_true", help="also the switches for the setup as given, by price")
    _add_setup(parser, rounding=False, own=True)


def _add_gpu(parser):
    parser.add_argument("--gpu", metavar="NAME", help="a name from `everybyte gpus`; or the next one")
    parser.add_argument("--memory", metavar="SIZE", help="of a GPU that is not in the catalog, as 24GiB")
    for field in fields(Headroom):
        parser.add_argument(
            f"--keep-{field.name}", default=field.default, metavar="SIZE", help=f"kept free of tensors: {field.name}, as 500MiB"
        )  # fmt: skip


def _kind(field):
    """What makes a field's value of a command's text."""
    if field.name in _READ:
        return _READ[field.name]
    return str if field.default is None else type(field.default)


def _reads(kind, none=None):
    """What makes a `kind` of a command's text."""

    def read(text):
        try:
            return none if text == "none" else kind.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


#: Fields of Setup that have fields of their own -> what makes them of text.
_READ = {"adapters": _reads(Lora), "mesh": _reads(Mesh, Mesh())}


def _allowed(field):
    """In words, what a field of Setup may be."""
    if field == "adapters":
        return f"'{Lora()}' or part of it: fields of a Lora; or none"
    if field == "mesh":
        return "'pipeline=2 tensor=8': fields of a Mesh; or none"
    if field in CHOICES:
        return ", ".join(CHOICES[field])
    if field in LIMITS:
        least, most = LIMITS[field]
        return f"{least} to {most:,}" if most > least else f"{least}"
    return "0 or more, below 1"


def _configuration(options):
    return model(options.model), _setup(options)


def _setup(options):
    return Setup(**{f.name: getattr(options, f.name) for f in fields(Setup)})


def _given(options):
    """(model, setup, the arguments of its forward with letters) of a command that takes models of one's own."""
    said = [name for name in ("model", "hf", "module") if getattr(options, name) is not None]
    if len(said) != 1:
        raise ValueError(
            f"{options.command}: {len(said) or 'no'} model{'s' * (len(said) > 1)}; allowed: one, by a name from `everybyte models`, --hf, --module"
        )
    if said == ["model"]:
        if options.inputs:
            raise ValueError(
                f"--inputs: {checks.shown(options.inputs[0])} with {options.model}, whose inputs are tokens; allowed: with --module or --hf"
            )
        return (*_configuration(options), None)
    setup = _setup(options)
    with _torch(options.command):
        from .deriving import given
    subject = given.config(options.hf) if said == ["hf"] else given.function(options.module)
    if said == ["module"] and not options.inputs:
        raise ValueError(
            "--inputs: none with --module; allowed: the arguments of its forward, such as tokens=B,S:int64"
        )
    return subject, setup, given.inputs(options.inputs)


def _completion(options):
    checks.one_of("completion", "shell", options.shell, completion.SHELLS)
    names = {"model": models(), "gpu": gpus(), "method": MODELS, "shell": completion.SHELLS}
    said = completion.words(options.parser, names)
    text = completion.script(options.shell, said, options.helps)
    return {"shell": options.shell, "script": text}, text


def _models(_):
    rows = [[m.name, m.parameters, m.layers, m.width, m.heads, m.kv_heads, m.vocabulary] for m in models().values()]
    columns = ["model", "parameters", "layers", "width", "heads", "kv heads", "vocabulary"]
    return [asdict(m) | {"parameters": int(m.parameters)} for m in models().values()], Table(columns, rows)


def _gpus(_):
    rows = [
        [g.name, g.title, units.gib(g.memory), f"{g.bandwidth / 1e9:,.0f} GB/s",
         f"{g.bf16_flops / 1e12:,.0f} TFLOP/s", f"{g.fp32_flops / 1e12:,.0f} TFLOP/s"]
        for g in gpus().values()
    ]  # fmt: skip
    return [asdict(g) for g in gpus().values()], Table(["gpu", "", "memory", "bandwidth", "dense 16-bit", "fp32"], rows)


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


def _claims(_):
    from . import claims, settle

    found = [settle(claim) for claim in terminal.bar(iterable=claims().values(), desc="claims")]
    rows = [[s.claim.id, s.claim.claim, s.stated_text, s.text, s.verdict, s.claim.chapter] for s in found]
    return [s.as_dict() for s in found], Table(["id", "claim", "stated", "computed", "verdict", "chapter"], rows)


def _witness(witness):
    said = witness.as_dict()
    rows = [[name, value, units.text(value)] for group in ("parts", "phases") for name, value in said[group].items()]
    if "workspace" in said["parts"] and said["witness"] == "predict":
        rows[list(said["parts"]).index("workspace")][2] = "not measured: 0"
    if "peak" in said:
        rows.append([f"peak, at {said['peak_at']}", said["peak"], units.text(said["peak"])])
    rows += [[f"{name}, in the CPU's memory", value, units.text(value)] for name, value in said.get("host", {}).items()]
    return said, Table([said["witness"], "bytes", ""], rows)


def _budget(options):
    return _witness(predict(*_configuration(options), rounding=options.rounding, rank=options.rank))


def _dry_run(options):
    return _witness(_count(options))


def _count(options):
    subject, setup, batch = _given(options)
    with _torch("dry-run"):
        from . import dry_run
    return dry_run(
        subject,
        setup,
        rounding=options.rounding,
        batch=_at(batch, setup, _sizes(options)),
        rank=getattr(options, "rank", 0),
    )


@contextmanager
def _torch(command):
    try:
        with interrupts.importing():
            yield
    except ImportError as error:
        raise ValueError(f"{command}: {error}; it needs PyTorch: pip install 'everybyte[dryrun]'") from error


def _at(batch, setup, sizes):
    """Arguments of a forward, with the setup's numbers for letters, and `sizes` for those of one's own."""
    if batch is None:
        return None
    from .deriving.looks import inputs

    try:
        return inputs(batch, setup.batch, setup.sequence, **sizes)
    except ValueError as error:
        raise ValueError(f"--sizes: {error}, such as R=224") from None


def _sizes(options):
    """The sizes of letters of one's own."""
    if options.sizes and not options.inputs:
        raise ValueError(f"--sizes: {checks.shown(options.sizes[0])}; allowed: with --inputs, sizes of its letters")
    found = {}
    for letter, said in checks.pairs("--sizes", options.sizes).items():
        size = checks.natural(said)
        if len(letter) != 1 or not letter.isupper() or letter in "BS" or size is None:
            raise ValueError(
                f"--sizes: {checks.shown(f'{letter}={said}')}; allowed: a capital letter other than B and S, and its size, such as R=224"
            )
        found[letter] = size
    return found


def _derive(options):
    sizes = _sizes(options)
    subject, setup, batch = _given(options)
    with _torch("derive"):
        from . import derive
    derivation = derive(subject, setup, batch, keep=not options.fresh, letters=options.letters, rank=options.rank)
    if sizes:
        if options.letters != "BS":
            raise ValueError(
                f"--sizes: {next(iter(sizes))} with --letters {options.letters}; allowed: with --letters BS"
            )
        derivation = derivation.fixed(**sizes)
    return derivation.as_dict() | {"latex": derivation.latex(), "peak": str(derivation.peak)}, derivation


def _compare(options):
    subject, setup, batch = _given(options)
    sizes = _sizes(options)
    with _torch("dry-run"):
        from . import compare, derive, dry_run
    witnesses = []
    if isinstance(subject, Model) and not (options.derive and not_derived(subject, setup)):
        witnesses.append(predict(subject, setup, rounding=options.rounding, rank=options.rank))
    if options.derive or not isinstance(subject, Model):
        formula = derive(subject, setup, batch)
        witnesses.append(formula.at(setup.batch, setup.sequence, options.rounding, **sizes))
    comparison = compare(*witnesses, dry_run(subject, setup, options.rounding, _at(batch, setup, sizes), options.rank))
    options.status = 0 if comparison.agree else 1
    return comparison.as_dict(), comparison


def _fit(options):
    from . import fit, plan

    card, headroom = _card(options)
    subject, setup, batch = _given(options)
    found = fit(subject, setup, card, options.vary, headroom, batch=batch, **_sizes(options))
    options.status = 0 if found.fits else 1
    if not options.plan:
        return found.as_dict(), found
    switches = plan(subject, setup, card, headroom, batch)
    options.status = 0 if switches.best else 1
    rungs = [switches.asked, *switches.ladder()]
    if switches.best and switches.best not in rungs:
        rungs.append(switches.best)  # in another precision
    return found.as_dict() | {"plan": switches.as_dict()}, f"{found}\n\n{switches.show(rungs)}"


def _card(options):
    """(GPU, what is kept free of tensors) of a command that asks for one."""
    kept = {f.name: getattr(options, f"keep_{f.name}") for f in fields(Headroom)}
    headroom = Headroom(**{n: _size(f"--keep-{n}", v) for n, v in kept.items()})
    if (options.gpu is None) == (options.memory is None):
        raise ValueError(
            f"{options.command}: --gpu and --memory; allowed: one of them, a name from `everybyte gpus` or a size as 24GiB"
        )
    return options.gpu or Gpu(memory=_size("--memory", options.memory)), headroom


def _layouts(options):
    from . import layouts

    card, headroom = _card(options)
    if options.written is not None:
        checks.one_of("layouts", "--as", options.written, ("torchtitan", "deepspeed"))
    asked = {"most": options.most} if hasattr(options, "most") else {}
    found = layouts(*_configuration(options), card, headroom, **asked)
    if options.written is None:
        return found.as_dict(), found.report()
    if found.best is None:
        raise ValueError(f"layouts.--as: {checks.shown(options.written)} of no layout: none of {found.tried} fits")
    if options.written == "deepspeed":
        return found.best.deepspeed(), json.dumps(found.best.deepspeed(), indent=2)
    return {"torchtitan": found.best.torchtitan()}, found.best.torchtitan()


def _serve(options):
    from . import serve

    card, headroom = _card(options)
    names = ("concurrency", "prompt", "cache", "weights", "cache_dtype", "page")
    asked = {name: getattr(options, name) for name in names if hasattr(options, name)}
    found = serve(model(options.model), card, options.context, headroom=headroom, **asked)
    options.status = 0 if found.fits else 1
    return found.as_dict(), found


def _align(options):
    subject, setup = _configuration(options)
    found = align(
        options.method,
        subject,
        setup,
        options.gpu,
        reference=options.reference,
        frozen=options.frozen,
        rollout=options.rollout,
    )
    options.status = 1 if found.fits is False else 0
    return found.as_dict(), found.table()


def _size(option, said):
    """Bytes, from a size in words; what is none stays so."""
    try:
        return round(units.parse(said)) if isinstance(said, str) else said
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def _doctor(options):
    from . import doctor, snapshot

    setup = _setup(options) if options.model else None
    given = [f.name for f in fields(Setup) if getattr(options, f.name) != f.default]
    if given and not options.model:
        raise ValueError(
            f"doctor: --{given[0].replace('_', '-')} without a model; allowed: a name from `everybyte models` after the file"
        )
    evidence = _evidence(options.file)
    if evidence[:1] == b"\x80":
        evidence = snapshot(evidence)
    else:
        evidence = evidence.decode(errors="replace")
    found = doctor(evidence, model(options.model) if options.model else None, setup, options.gpu, options.conf)
    return found.as_dict(), found


def _evidence(name):
    """The bytes of a file, or of standard input."""
    from .evidence import pickles

    owner = "doctor.file"
    if name != "-":
        with files.opened(owner, name, pipes=True) as file:
            return files.some(owner, name, file, pickles.MOST)
    stdin = getattr(sys.stdin, "buffer", None)
    if stdin is None:
        raise ValueError(f"{owner}: - with a closed standard input; allowed: a file, or text on standard input")
    return files.some(owner, name, stdin, pickles.MOST)


def _snapshot(options):
    from . import snapshot

    found = snapshot(options.file)
    if options.figure:
        with interrupts.importing():  # and matplotlib's C++ makes a ValueError of a Ctrl-C
            from .draw import png

            drawn = png(found.main.figure())
        with files.whole(options.figure) as file:
            file.write(drawn)
    return found.as_dict(), found


def _measure(options):
    from .lab import Failed, measure

    try:
        measurement = measure(*_configuration(options), options.device, alone=options.alone)
    except Failed as error:
        raise ValueError(f"measure: {error}") from error
    return measurement.as_dict(), measurement.table()


def _rehearse(options):
    from . import rehearsal

    if sum(map(bool, (options.script, options.grid, options.recheck is not None))) != 1 and not options.set_up:
        raise ValueError(
            "rehearse: nothing to run; allowed: everybyte rehearse -- python train.py ..., --grid, --recheck, or --set-up"
        )
    if options.set_up:
        where = rehearsal.set_up(torch=options.torch, say=terminal.note)
        if not options.grid and not options.script and options.recheck is None:
            said = where.manifest | {"folder": str(where.folder)}
            return said, f"{where.folder.name}: PyTorch {where.manifest['torch']}, no GPU and nothing of NVIDIA's"
    if rehearsal.place.real_gpu():
        terminal.note("This machine has a GPU: `everybyte measure` says more than a rehearsal.")
    if options.recheck is not None:
        shelf = rehearsal.recheck(
            options.gpu, options.out, count=options.recheck, workers=options.workers, say=terminal.note
        )
        return (
            shelf.head,
            f"{shelf.path}: {shelf.head['rechecked']} of {len(shelf.found)} steps ask for what stands there",
        )
    if options.grid:
        shelf = rehearsal.rehearse_grid(options.gpu, options.out, workers=options.workers, say=terminal.note)
        return shelf.head | {"rehearsed": len(shelf.found)}, f"{shelf.path}: {len(shelf.found)} steps rehearsed, no GPU"
    memory = _size("--memory", options.memory)
    found = rehearsal.rehearse_script(
        options.script, options.gpu, gpus=options.gpus, alone=options.alone, steps=options.steps, memory=memory,
        snapshot=options.snapshot, quiet=options.json,
    )  # fmt: skip
    options.status = 128 - found.status if found.status < 0 else found.status  # of a signal, a shell's
    return found.as_dict(), found


@contextmanager
def _recorders(options):
    """What starts the workers of a recording, where that is a rehearsal."""
    if not options.rehearse:
        yield {}
        return
    from .rehearsal import devices, place, steps

    where = place.find()
    with steps.starter(where, devices.find(options.gpu, where.manifest["capabilities"])) as start:
        yield {"start": start}


def _record(options):
    from .lab import Failed, estimate, grid, record

    def need(model, setup):
        return predict(model, setup, ROUNDING).peak

    if options.list:
        table = estimate(grid(options.only), gpu(options.gpu), need)
        return [dict(zip(table.columns, row, strict=True)) for row in table.rows], table
    out = options.out or ("build/rehearsed" if options.rehearse else "labs/records")
    try:
        with _recorders(options) as start:
            progress = record(out, options.minutes, options.only, options.device, need=need, **start)
    except (Failed, ImportError, OSError) as error:
        raise ValueError(f"record: {error}") from error
    except KeyboardInterrupt as error:
        error.args = (f"what was measured is in {out}; the same command goes on from there",)
        raise
    return progress.as_dict(), progress


if __name__ == "__main__":
    sys.exit(main())
