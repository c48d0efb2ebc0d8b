"""Read a traceback in a log: which line of the script failed, and in which phase of a run."""

import re

from ..common import files
from . import naming

#: How far before an error's message its traceback is looked for.
_BEFORE = 60_000
#: And how far a word that tells the phase, where there is none.
_NEAR = 2_000
#: A frame as Python writes it, with what a launcher writes before each line, and its text on the next; as IPython does, new and old.
_FRAME = re.compile(
    r'^[^\n"]{0,160}?File "(?P<file>[^"\n]{1,500})", line (?P<line>[0-9]{1,9})(?:, in (?P<name>[^\n]{1,200}))?(?:\n(?P<code>[^\n]{0,400}))?'
    r"|^(?:File )?(?P<file2>[^\s:]{1,500}\.py):(?P<line2>[0-9]{1,9}), in (?P<name2>[\w.<>]{1,200})"
    r"|^(?P<file3>/[^\s:]{1,500}\.py|<ipython-input-[\w-]{1,80}>) in (?P<name3>[\w.<>]{1,200})"
    r"|^(?P<file4>Cell In)\[[0-9]{1,9}\], line (?P<line4>[0-9]{1,9})",
    re.M,
)
#: The line that an IPython's frame points at.
_ARROW = re.compile(r"^-+> +[0-9]+ (?P<code>[^\n]{0,400})", re.M)
#: What tells the phase where there is no traceback.
_WORDS = {
    "save": re.compile(r"Failed to clone\(\) tensor|state_dict\(\) call"),
    "load": re.compile(r"Loading checkpoint shards"),
}
_BEGINS = re.compile(r"Traceback \(most recent call last\)")
#: Phases in the order in which they are tried, each with patterns of a frame's file, function and text.
_PHASES = files.toml(__package__, "phases.toml")


def traced(text: str, end: int) -> dict[str, str]:
    """What the last traceback before a place of a text says, as `Message` has it: phase, line, call and part; the phase alone without one."""
    before = text[max(0, end - _BEFORE) : end]
    begins = [found.end() for found in _BEGINS.finditer(before)]
    frames = _frames(before[begins[-1] :] if begins else before)
    if not frames:
        return {"phase": next((phase for phase, said in _WORDS.items() if said.search(before[-_NEAR:])), "")}
    tried = ((phase, said, frames[-said.get("innermost", 0) :]) for phase, said in _PHASES.items())
    phase = next((phase for phase, said, last in tried if any(_is(frame, said) for frame in last)), "")
    inner = frames[::-1]
    line = naming.where(inner) if any(map(naming.script, inner)) else ""
    return {"phase": phase, "line": line, "call": str(inner[0]["name"]), "part": naming.part(inner)}


def _frames(text):
    """The frames of a traceback, the outermost first."""
    found, frames = list(_FRAME.finditer(text)), []
    for place, one in enumerate(found):
        end = found[place + 1].start() if place + 1 < len(found) else len(text)
        which = next(end for end in ("", "2", "3", "4") if one[f"file{end}"])
        file = "<ipython-input>" if which == "4" else one[f"file{which}"]
        name = (one[f"name{which}"] or "" if which != "4" else "a cell").strip().rpartition(".")[2] or "<module>"
        line = int(one[f"line{which}"] if which != "3" else 0)
        arrow = _ARROW.search(text, one.end(), end) if which else None
        code = arrow["code"] if arrow else one["code"] or ""
        frames.append({"filename": file, "line": line, "name": name, "code": code.strip()})
    return frames


def _is(frame, said):
    """Whether a frame is of a phase: one of its patterns is found in it."""
    file = frame["filename"].replace("\\", "/")
    looked = {"file": file, "function": frame["name"], "code": frame["code"]}
    return any(re.search(said[what], text) for what, text in looked.items() if what in said)
