"""The commands that rehearse commits, and the one that serves agents."""

from ..common import terminal
from . import given

COMMANDS = ("diff", "bisect", "mcp")


def _asked(options):
    if not options.script:
        raise ValueError(
            f"{options.command}: nothing to run; allowed: everybyte {options.command} ... -- python train.py ..."
        )
    return {name: getattr(options, name) for name in ("gpu", "gpus", "alone", "steps")} | {"carried": options.carry}


def diff(options):
    from ..guard import comment
    from ..guard import diff as compared

    asked, over = _asked(options), given.size("--over", options.over)
    largest = given.span("--largest", options.largest) if options.largest else None
    found = compared(options.base, options.head, options.script, largest=largest, **asked)
    shown = found if options.comment is None else comment(found, options.comment)
    return found.as_dict(), shown, 0 if over is None or found.change.bytes <= over else 1


def bisect(options):
    from ..guard import bisect as searched

    asked, over = _asked(options), given.size("--over", options.over) or 0
    found = searched(options.good, options.bad, options.script, over=over, say=terminal.note, **asked)
    return found.as_dict(), found, 0 if found.moved else 1


def mcp(options):
    from .agents import serve

    serve(options)
    return {}, None, 0
