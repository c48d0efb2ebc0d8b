"""A derivation as code: in Python for whole numbers and arrays, and in JavaScript."""

from typing import NamedTuple

from ..common import checks
from ..step.amount import NAMES, Amount

_SAFE = 2**62


# Code.


class Language(NamedTuple):
    """How code says a quotient that is rounded down, a size rounded up, the most of some, and one of a list by the most of `live`."""

    whole: str
    up: str
    most: str
    first: str


PYTHON = Language("(({0}) // {1})", "-(-({0}) // {1}) * {1}", "max([{0}])", "[{0}][live.index(max(live))]")
#: JavaScript has no whole numbers.
SCRIPT = Language(
    "(Math.floor(({0}) / {1}))", "-(Math.floor(-({0}) / {1})) * {1}", "Math.max({0})",
    "[{0}][live.indexOf(Math.max(...live))]",
)  # fmt: skip


def programs(derivation, body):
    """(Python function of the letters in their order, JavaScript of an object with them).

    Args:
        body: of a case, in a language: (assignments, what is returned).
    """
    lines, script = [f"def program({', '.join(derivation.every)}):"], ""
    for case in derivation.cases:
        assigned, returned = body(case, PYTHON)
        lines += [f"    if {_test(case)}:", *(f"        {line}" for line in (*assigned, f"return {returned}"))]
        assigned, returned = body(case, SCRIPT)
        script += f"if ({_test(case, True)}) {{ {''.join(f'const {line}; ' for line in assigned)}return {returned}; }} "
    where = ", ".join(f"{NAMES.get(letter, letter)} {{{letter}}}" for letter in derivation.every)
    lines.append(f"    raise ValueError(f'derive: no case holds at {where}')")
    read = ", ".join(f"{x} = v.{NAMES.get(x, x)}" for x in derivation.every)
    return _function("\n".join(lines) + "\n"), f"(v) => {{ const {read}; {script}return NaN; }}"


def _function(source):
    space = {}
    exec(source, space)  # noqa: S102 printed from whole numbers and letters, nothing else
    return space["program"]


def _test(case, script=False):
    """Whether a case holds, in Python or in JavaScript."""
    both, same, differs = ("&&", "===", "!==") if script else ("and", "==", "!=")
    said = []
    for x, r in case.ranges.items():
        said.append(f"{r.low} <= {x} && {x} <= {r.high}" if script else f"{r.low} <= {x} <= {r.high}")
        said += [f"{x} % {r.by} {same if r.multiples else differs} 0"] if r.by > 1 else []
    return f" {both} ".join(said)


def sizes(derivation):
    """A function of the letters in their order: the bytes of each form."""
    body = ", ".join(f.text() for f in derivation.forms)
    return _function(f"def program({', '.join(derivation.every)}):\n    return [{body}]\n")


def peak(derivation, rounding):
    """The two programs of the peak's bytes."""

    def body(case, language):
        texts = dict.fromkeys(_live(derivation, instant, rounding, language) for instant in case.rounded)
        rounded = derivation.used(case) if rounding > 1 else ()
        lines = [f"f{k} = {language.up.format(derivation.forms[k].text(language.whole), rounding)}" for k in rounded]
        return lines, language.most.format(", ".join(texts))

    return programs(derivation, body)


def _live(derivation, instant, rounding, language):
    """An instant's live bytes, each tensor rounded up; f1 is what form 1 is then, where that is no sum of monomials."""
    even, others = [], []
    for k, n in sorted(derivation.tensors(instant).items()):
        amount = derivation.forms[k] if rounding == 1 else derivation.forms[k].rounded(rounding)
        if amount is None:
            others.append(f"{n}*f{k}")
        else:
            even.append((amount, n))
    return " + ".join([Amount.total(even).text(language.whole), *others])


def at_the_peak(derivation, said):
    """The two programs of what is said of the instant at which the most bytes live.

    Args:
        said: of a case, one of its instants, and how a quotient is written: code.
    """

    def body(case, language):
        texts = [said(case, instant, language.whole) for instant in case.peak]
        if len(set(texts)) == 1:
            return (), texts[0]
        totals = ", ".join(derivation.live(instant).text(language.whole) for instant in case.peak)
        return (f"live = [{totals}]",), language.first.format(", ".join(texts))

    return programs(derivation, body)


# Arrays.


def peaks(derivation, batch, sequence, rounding, further):
    import numpy

    given = zip(derivation.every, (batch, sequence, *further.values()), strict=True)
    arrays = numpy.broadcast_arrays(*(checks.whole_numbers("derive", NAMES.get(x, x), values) for x, values in given))
    shape = arrays[0].shape
    left, peak, where = numpy.ones(shape, bool), numpy.zeros(shape, object), numpy.zeros(shape, "int64")
    start = 0
    for case in derivation.cases:
        inside = left.copy()
        for values, r in zip(arrays, case.ranges.values(), strict=True):
            inside &= _inside(r, values)
        if inside.any():
            left &= ~inside
            rows = _rows(derivation, case, [values[inside] for values in arrays], rounding)
            best = numpy.argmax(rows, axis=0)
            peak[inside] = rows[best, numpy.arange(rows.shape[1])]
            where[inside] = start + best
        start += len(case.rounded)
    if left.any():
        first = tuple(numpy.argwhere(left)[0])
        b, s, *rest = (int(values[first]) for values in arrays)
        derivation.case(b, s, **dict(zip(further, rest, strict=True)))
    most = int(peak.max(initial=0))
    return peak.astype("int64") if most < 2**63 else peak, where


def _inside(r, values):
    found = (values >= r.low) & (values <= r.high)
    return found if r.by == 1 else found & ((values % r.by == 0) == r.multiples)


def _rows(derivation, case, arrays, rounding):
    """The live bytes of each instant that may be the peak, a row each; in Python's whole numbers where 64 bits are too few.

    Args:
        arrays: sizes of each letter.
    """
    import numpy

    counts = numpy.zeros((len(case.rounded), len(derivation.forms)), "int64")
    for row, instant in zip(counts, case.rounded, strict=True):
        for k, n in derivation.tensors(instant).items():
            row[k] = n
    most = dict(zip(derivation.every, (int(values.max()) for values in arrays), strict=True))
    least = [int(sum(abs(c) * m.at(most) for m, c in f.terms) * f.denominator) + rounding for f in derivation.forms]
    dtype = "int64" if max(counts.astype(object).dot(least)) < _SAFE else object
    each = derivation.sizes(*(values.astype(dtype) for values in arrays))
    each = numpy.array([numpy.broadcast_to(numpy.asarray(size, dtype), arrays[0].shape) for size in each])
    return counts.astype(dtype).dot(-(-each // rounding) * rounding)


def winners(derivation, case):
    """Which of a case's instants are the peak somewhere on a grid of powers of two and what lies between."""
    import numpy

    halves = 2 if len(derivation.letters) < 3 else 1

    def axis(letter, r):
        if letter not in derivation.letters:
            return numpy.array([r.low], dtype="int64")
        steps = sorted({r.low, r.high, *(int(2 ** (k / halves)) for k in range(32 * halves))})
        return numpy.array([v for v in steps if v in r] or r.some([], 1), dtype="int64")

    axes = numpy.meshgrid(*(axis(letter, r) for letter, r in case.ranges.items()))
    rows = _rows(derivation, case, [x.ravel() for x in axes], 1)
    seen = {case.rounded[i].place for i in numpy.unique(numpy.argmax(rows, axis=0))}
    return [instant for instant in case.peak if instant.place in seen] or list(case.peak[:1])
