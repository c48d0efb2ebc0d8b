"""`everybyte rehearse -- python train.py`: a script, once or often, and its pictures."""

import tempfile
from contextlib import ExitStack
from html import escape
from pathlib import Path

from ..common import files, interrupts
from . import given

#: Options that are about one rehearsal of a script; and the ends of a timeline's file.
OF_ONE = ("snapshot", "timeline", "explore", "quiet")
PICTURES = (".png", ".svg")


def script(options, folder):
    """Rehearse a script once; or often, for its largest value or what its switches save."""
    from ..answers import scripts

    asked = {
        "gpus": options.gpus, "alone": options.alone, "steps": options.steps, "folder": folder, "memory": given.size("--memory", options.memory),
        "rows": share(options.rows), "routing": options.routing, "streams": options.streams, "padded": options.padded,
    }  # fmt: skip
    many = [name for name in ("largest", "tries") if getattr(options, name)]
    if many and (one := [name for name in OF_ONE if getattr(options, name)]) or len(many) > 1:
        both = f"--{'try' if many[0] == 'tries' else many[0]} with --{one[0] if one else 'try'}"
        raise ValueError(f"rehearse: {both}; allowed: one of --largest and --try, without --{', --'.join(OF_ONE)}")
    if options.largest:
        found = scripts.largest(options.script, *given.span("--largest", options.largest), options.gpu, **asked)
        return found.as_dict(), found, 0 if found.fits else 1
    if options.tries:
        tried = scripts.tried(options.script, dict(map(scripts.Switch.read, options.tries)), options.gpu, **asked)
        return tried.as_dict(), tried, 0
    return _once(options, asked)


def _once(options, asked):
    from ..rehearsal import rehearse_script

    if options.timeline and not options.timeline.lower().endswith(PICTURES):
        raise ValueError(f"--timeline: {options.timeline!r}; allowed: a file that ends in {' or '.join(PICTURES)}")
    drawn = bool(options.timeline or options.explore)
    with ExitStack() as stack:
        path = options.snapshot
        if drawn and not path:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rehearsal-"))) / "snapshot.pickle"
        found = rehearse_script(
            options.script, options.gpu, snapshot=path, owners=drawn, quiet=options.json, hidden=options.quiet, **asked
        )
        if drawn:
            _draw(found, options)
    status = 128 - found.status if found.status < 0 else found.status  # of a signal, a shell's
    return found.as_dict(), found.table() if options.quiet else found, status


def _draw(found, options):
    """Write the pictures that the options name."""
    memory, course = found.timeline()
    with interrupts.importing():
        from .. import draw

        fig = draw.timeline(course, " ".join(options.script), capacity=None, places="allocations and frees")
        svg = str(options.timeline).lower().endswith(".svg")
        made = {options.timeline: draw.svg(fig) if svg else draw.png(fig, fig.alt)}
        if options.explore:
            from ..explore import memory_map
            from ..explore.alone import page

            shown = memory_map(memory, parts=[(name, draw.part(name).label) for name in course.lines])
            drawn = f'<figure role="img" aria-label="{escape(fig.alt)}">{draw.svg(fig).decode()}</figure>'
            above = [found.table()._repr_html_(), drawn]
            made[options.explore] = page(shown, f"Rehearsed: {' '.join(options.script)}", above).encode()
    for path, content in made.items():
        if path:
            with files.whole(path) as file:
                file.write(content)


def share(said):
    """Of rows, as typed."""
    try:
        return {"none": 0.0, "all": 1.0}[said] if said in ("none", "all") else float(said)
    except ValueError:
        raise ValueError(f"--rows: {said!r}; allowed: none, all, or a number from 0 to 1") from None
