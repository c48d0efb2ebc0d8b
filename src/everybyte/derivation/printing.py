"""A derivation in other languages: Python for whole numbers, numpy, JavaScript, sympy."""

from functools import lru_cache
from typing import NamedTuple

from ..common import checks
from ..step.amount import NAMES, USUAL, Amount, Quotient

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
        texts = dict.fromkeys(_live(derivation, case.instants[i], rounding, language) for i in case.rounded)
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
        chosen = [case.instants[i] for i in case.peak]
        texts = [said(case, instant, language.whole) for instant in chosen]
        if len(set(texts)) == 1:
            return (), texts[0]
        totals = ", ".join(derivation.live(instant).text(language.whole) for instant in chosen)
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
    for row, i in zip(counts, case.rounded, strict=True):
        for k, n in derivation.tensors(case.instants[i]).items():
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
    seen = {case.rounded[i] for i in numpy.unique(numpy.argmax(rows, axis=0))}
    return [i for i in case.peak if i in seen] or list(case.peak[:1])


# sympy.


@lru_cache(maxsize=4096)
def symbol(atom: str | Quotient):
    """A letter, as the book's notation has B and S; or a rounded quotient of letters."""
    import sympy

    if not isinstance(atom, Quotient):
        return sympy.Symbol(atom, integer=True, positive=True)
    inside, by = expression(atom.inside), atom.by
    return sympy.ceiling(inside / by) if atom.plus == by - 1 else sympy.floor((inside + atom.plus) / by)


@lru_cache(maxsize=4096)
def expression(amount: Amount):
    """An amount in sympy."""
    import sympy

    products = (
        sympy.Mul(sympy.Rational(c.numerator, c.denominator), *(symbol(atom) ** power for atom, power in m.atoms))
        for m, c in amount.terms
    )
    return sympy.Add(*products)


def maximum(expressions):
    """The largest of some expressions."""
    import sympy

    expressions = list(dict.fromkeys(expressions))
    return expressions[0] if len(expressions) == 1 else sympy.Max(*expressions, evaluate=False)


def above(mine, others):
    """Where one expression is no less than any of the others, as a condition."""
    import sympy

    return sympy.And(*(sympy.Ge(mine, o, evaluate=False) for o in others)) if others else sympy.true


def by_highest(pairs):
    """Of (live bytes, what is said of them) that which belongs to the most, as a sympy expression."""
    import sympy

    if len({said for _, said in pairs}) == 1:
        return pairs[0][1]
    pieces = [
        (said, above(mine, [o for j, (o, _) in enumerate(pairs) if j != i]))
        for i, (mine, said) in enumerate(pairs[:-1])
    ]
    return sympy.Piecewise(*pieces, (pairs[-1][1], True), evaluate=False)


def _condition(r, letter):
    import sympy

    x = symbol(letter)
    parts = [sympy.Eq(x, r.low)] if r.single else [sympy.Ge(x, r.low), sympy.Le(x, r.high)]
    if r.by > 1:
        test = sympy.Eq if r.multiples else sympy.Ne
        parts.append(test(sympy.Mod(x, r.by), 0))
    return sympy.And(*parts)


def _differ(case, one, other):
    """Whether two expressions differ where a case holds."""
    at = {symbol(letter): r.low for letter, r in case.ranges.items() if r.single}
    return one != other and one.subs(at) != other.subs(at)


def cases(derivation, expression):
    """The expression of each case, by pieces where they differ; the last piece's condition is left to `conditions`."""
    import sympy

    main = expression(derivation.main)
    pieces = []
    for case in derivation.cases:
        mine = main if case is derivation.main else expression(case)
        # pieces are not put in: sympy would compare them all again, for minutes
        compared = not (mine.has(sympy.Piecewise) or main.has(sympy.Piecewise))
        if _differ(case, mine, main) if compared else mine != main:
            held = (_condition(r, x) for x, r in case.ranges.items() if x in derivation.letters)
            pieces.append((mine, sympy.And(*held)))
    return sympy.Piecewise(*pieces, (main, True), evaluate=False) if pieces else main


def unlike(derivation) -> list:
    """The cases whose peak is not the main one's formula."""

    def peak(case):
        return maximum([derivation.expression(case.instants[i]) for i in case.peak])

    main = peak(derivation.main)
    return [case for case in derivation.cases if _differ(case, peak(case), main)]


def conditions(derivation):
    """(in words, as a sympy condition, or None) of each condition."""
    import sympy

    said = []
    for letter in derivation.letters:
        name, x = NAMES.get(letter, letter), symbol(letter)
        low, high = derivation.range(name)
        words = f"{'a ' if letter in USUAL else ''}{name} from {low:,} to {high:,}"
        held = (x >= low) & (x <= high)
        ranges = {case.ranges[letter] for case in derivation.cases}
        if len({r.by for r in ranges}) == 1 and all(r.by > 1 and r.multiples for r in ranges):
            (by,) = {r.by for r in ranges}
            words, held = f"{words}, a multiple of {by}", held & sympy.Eq(sympy.Mod(x, by), 0)
        said.append((words, held))
    return said + [(f"not {place(derivation, ranges)} ({why})", None) for ranges, why in derivation.refused]


def place(derivation, ranges) -> str:
    """Where a case holds, in words."""
    said = []
    for letter, r in zip(derivation.every, ranges, strict=True):
        name = NAMES.get(letter, letter)
        low, high = derivation.range(name) if letter in derivation.letters else (r.low, r.high)
        if r.by == 1 and r.low <= low and high <= r.high:
            continue  # all that there is
        if r.single:
            said.append(f"{name} {r.low:,}")
        else:
            multiples = "" if r.by == 1 else f", {'multiples' if r.multiples else 'no multiples'} of {r.by}"
            said.append(f"{name} {r.low:,} to {r.high:,}{multiples}")
    return ", ".join(said) or "anywhere"
