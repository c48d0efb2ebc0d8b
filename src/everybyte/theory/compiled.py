"""A course printed as one Python function: a few hundred additions, for what is asked often."""

from ..step.course import MARKS, PEAKS, Repeat, place_of
from .letters import HELPERS, factor, text

#: Every letter that a course may use.
LETTERS = (
    "B", "S", "L", "H", "A", "A_kv", "D", "F", "V", "N", "N_max", "W", "E", "E_t", "F_e", "K", "n_c", "n_a", "n_f", "w", "w_s", "c",
    "s_b", "r", "m_w", "G", "R", "C", "C_l", "E_p", "G_e", "X", "P", "Q", "r_A", "w_A", "t",
)  # fmt: skip


def compiled(course):
    """The course as one function of the letters and the rounding `k`: some hundred additions."""
    parts, lines, numbers = course.parts, [], {}

    def size(piece):
        if piece.key not in numbers:
            numbers[piece.key] = f"s{len(numbers)}"
            total = f"({factor(piece.numbers)})*({factor(piece.width)})"
            count = "" if text(piece.count) == "1" else f"*({text(piece.count)})"
            lines.append(f"{numbers[piece.key]} = -(-{total}//k)*k{count}")
        return numbers[piece.key]

    def sums(pieces):
        by = {}
        for piece in pieces:
            by.setdefault(parts.index(piece.part), []).append(size(piece))
        return {part: "+".join(found) for part, found in by.items()}

    body = [f"x{i} = {rest}" for i in range(len(parts)) for rest in [sums(course.rest).get(i, "0")]]
    everything = ", ".join(f"x{i}" for i in range(len(parts)))
    body += [
        "p = at = step = 0",
        "best = ()",
        "now = " + "+".join(f"x{i}" for i in range(len(parts))),
        f"rest = ({everything})",
    ]
    marks = ["rest"]

    def write(items, indent, depth):
        pad = " " * indent
        for item in items:
            if isinstance(item, Repeat):
                name = f"n{depth}"
                body.append(f"{pad}{name} = {text(item.times)}")
                body.append(f"{pad}b{depth} = ({everything})")
                body.append(f"{pad}for i{depth} in (0, 1) if {name} > 1 else (0,):")
                write(item.items, indent + 1, depth + 1)
                body.append(f"{pad} if not i{depth} and {name} > 2:")
                for i in range(len(parts)):
                    body.append(f"{pad}  x{i} += (x{i} - b{depth}[{i}])*({name}-2)")
                body.append(f"{pad}  now = " + "+".join(f"x{i}" for i in range(len(parts))))
                continue
            if item.name in MARKS:
                body.append(f"{pad}{item.name} = ({everything})")
                if item.name not in marks:
                    marks.append(item.name)
                if item.name == "after_backward":
                    body.append(f"{pad}step = now")
                _give(body, pad, sums(item.freed))
                continue
            for part, found in sums(item.taken).items():
                body.append(f"{pad}d = {found}; x{part} += d; now += d")
            if item.taken:
                where = PEAKS.index(place_of(item))
                body.append(f"{pad}if now > p: p = now; at = {where}; best = ({everything})")
                if item.phase == "optimizer step":
                    body.append(f"{pad}if now > step: step = now")
            _give(body, pad, sums(item.freed))

    write(course.items, 1, 0)
    named = ", ".join(f"'{name}': {name}" for name in marks)
    source = "def program(k, " + ", ".join(LETTERS) + ", **_):\n"
    source += "".join(f" {line}\n" for line in lines) + "".join(
        f" {line}\n" if not line.startswith(" ") else f"{line}\n" for line in body
    )
    source += f" return p, at, best, {{{named}}}, step\n"
    names = dict(HELPERS)
    exec(compile(source, "<course>", "exec"), names)  # noqa: S102  text that `letters` and this function wrote
    return names["program"]


def _give(body, pad, freed):
    for part, found in freed.items():
        body.append(f"{pad}d = {found}; x{part} -= d; now -= d")
