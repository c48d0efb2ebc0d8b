"""A course printed as one Python function: a few hundred additions, for what is asked often."""

import re

from ..step.course import MARKS, PEAKS, Repeat, place_of
from .letters import HELPERS, factor, text

_LETTER = re.compile(r"\b[A-Za-z]\w*\b(?!\()")


def compiled(course):
    """A function of the rounding `k` and the letters: (peak, its place, its parts, marks -> parts, the step's peak)."""
    names = dict(HELPERS)
    exec(compile(_Program(course).source(), "<course>", "exec"), names)  # noqa: S102  text of `letters` and of this
    return names["program"]


class _Program:
    """Its lines: x0, ... are the live bytes of each part, `now` is their sum; s0, ... are the sizes of pieces."""

    def __init__(self, course):
        self._index, self._sizes, self._letters = course.parts.index, {}, set()
        self._each = [f"x{i}" for i in range(len(course.parts))]
        self._all, self._total = f"({', '.join(self._each)})", "+".join(self._each)
        rest, self._marks = self._sums(course.rest), {"rest": None}
        self._body = [f" x{i} = {rest.get(i, 0)}" for i in range(len(course.parts))]
        self._body += [" p = at = step = 0", " best = ()", f" now = {self._total}", f" rest = {self._all}"]
        self._write(course.items, " ", 0)

    def source(self):
        lines = [f" {name} = {size}" for name, size in self._sizes.values()]
        marks = ", ".join(f"'{name}': {name}" for name in self._marks)
        first, last = f"def program(k, *, {', '.join(self._letters)}, **_):", f" return p, at, best, {{{marks}}}, step"
        return "\n".join([first, *lines, *self._body, last, ""])

    def _said(self, number):
        self._letters |= set(_LETTER.findall(found := text(number)))
        return found

    def _size(self, piece):
        if piece.key not in self._sizes:
            numbers, width, count = map(self._said, (piece.numbers, piece.width, piece.count))
            size = f"-(-({factor(piece.numbers)})*({factor(piece.width)})//k)*k" + f"*({count})" * (count != "1")
            self._sizes[piece.key] = f"s{len(self._sizes)}", size
        return self._sizes[piece.key][0]

    def _sums(self, pieces):
        by = {}
        for piece in pieces:
            by.setdefault(self._index(piece.part), []).append(self._size(piece))
        return {part: "+".join(found) for part, found in by.items()}

    def _change(self, pad, pieces, sign):
        self._body += [f"{pad}d = {sum}; x{i} {sign}= d; now {sign}= d" for i, sum in self._sums(pieces).items()]

    def _write(self, items, pad, depth):
        """The operations; of what repeats the first and the last turn."""
        for item in items:
            if isinstance(item, Repeat):
                times, before, turn = f"n{depth}", f"b{depth}", f"i{depth}"
                self._body += [f"{pad}{times} = {self._said(item.times)}", f"{pad}{before} = {self._all}"]
                self._body.append(f"{pad}for {turn} in (0, 1) if {times} > 1 else (0,):")
                self._write(item.items, pad + " ", depth + 1)
                self._body.append(f"{pad} if not {turn} and {times} > 2:")
                self._body += [f"{pad}  {x} += ({x} - {before}[{i}])*({times}-2)" for i, x in enumerate(self._each)]
                self._body.append(f"{pad}  now = {self._total}")
                continue
            self._change(pad, item.taken, "+")
            if item.name in MARKS:
                self._marks[item.name] = None
                self._body.append(f"{pad}{item.name} = {self._all}")
                self._body += [f"{pad}step = now"] * (item.name == "after_backward")
            elif item.taken:
                where = PEAKS.index(place_of(item))
                self._body.append(f"{pad}if now > p: p = now; at = {where}; best = {self._all}")
                self._body += [f"{pad}if now > step: step = now"] * (item.phase == "optimizer step")
            self._change(pad, item.freed, "-")
