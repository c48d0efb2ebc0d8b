"""Run a command: its output, its errors and its exit status."""

import json
import os
import sys
import traceback

from ..common import interrupts, refusals, terminal
from . import answers, words

#: The command that `everybyte` without words runs.
FIRST = ("budget", "gpt2", "--batch", "8", "--sequence", "1024", "--precision", "bf16-mixed")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status, one of `STATUSES`. An error is printed in one line."""
    terminal.hold()
    endings = interrupts.Endings(exits=False)
    try:
        with endings:
            return _run(arguments)
    except KeyboardInterrupt as error:  # at its very ends
        endings.undo()
        return _wrong(*interrupts.told(error))


def _run(arguments):
    options = None
    arguments = sys.argv[1:] if arguments is None else arguments
    machine = "--json" in words.own(arguments)[1:]
    try:
        if not arguments:
            terminal.write(_first(), sys.stdout)
            return 0
        options = words.read(arguments)
        said, shown, status = _answer(options)
        if shown is not None:
            terminal.write(f"{json.dumps(said) if options.json else terminal.shown(shown, sys.stdout)}\n", sys.stdout)
        return status
    except ValueError as error:
        return _wrong(str(error), said={"refused": refusals.parts(str(error))} if machine else None)
    except KeyboardInterrupt as error:
        return _wrong(*interrupts.told(error))
    except BrokenPipeError:  # whoever read the output has enough
        terminal.no_more(sys.stdout)
        return 0
    except OSError as error:  # a full disk, a file that cannot be written
        terminal.no_more(sys.stdout)
        where = f": {error.filename}" if error.filename else ""
        line = f"{error.strerror or error}{where}"
        return _wrong(line, said={"failed": line} if machine else None)
    except Exception as error:
        if os.environ.get("EVERYBYTE_TRACEBACK"):
            raise
        place = _theirs(error, getattr(options, "module", None))
        whose = f"--module: {place}" if place else "this is a mistake of ours"
        said = ": ".join(filter(None, (type(error).__name__, str(error))))
        line = f"{whose}, {said}; EVERYBYTE_TRACEBACK=1 before the same command says where"
        line = " ".join(line.split())
        return _wrong(line, 2 if place else 70, {"failed": line} if machine else None)


def _answer(options):
    if options.command != "mcp":
        return getattr(answers, options.command.replace("-", "_"))(options)
    from .agents import serve  # whose tools are the answers

    serve(options)
    return {}, None, 0


def _wrong(line, status=2, said=None):
    """Print an error's line; before it, where the answer was to be JSON, what it says as JSON in its place."""
    if said is not None:
        try:
            terminal.write(f"{json.dumps(said)}\n", sys.stdout)
        except OSError:  # whoever read it has gone
            terminal.no_more(sys.stdout)
    terminal.complain(line)
    return status


def _theirs(error, module):
    """The place in the user's own module where an error was raised; "" where it was raised elsewhere."""
    if not module:
        return ""
    file = os.path.abspath(module.rpartition(":")[0])
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if os.path.abspath(f.filename) == file]
    if lines:
        return f"{os.path.basename(file)}, line {lines[-1]}"
    notes = [note for note in getattr(error, "__notes__", []) if note.startswith("everybyte.dry_run: ")]
    return notes[0].removeprefix("everybyte.dry_run: ").partition(". ")[0] if notes else ""


def _first():
    table = terminal.shown(_answer(words.read(FIRST))[1], sys.stdout)
    return words.SAID["first"].format(words=" ".join(FIRST), table=table)
