"""A derivation in other languages: Python for whole numbers, numpy, sympy, LaTeX, JavaScript."""

from fractions import Fraction
from functools import lru_cache
from math import lcm
from weakref import WeakKeyDictionary

from ..common import checks
from .forms import ONE, USUAL, Monomial, sum_text

_SAFE = 2**62
#: What the setup calls a letter.
NAMES = {"B": "batch", "S": "sequence"}
_MADE = WeakKeyDictionary()


def _once(derivation, key, make):
    """What is made of a derivation, once."""
    made = _MADE.setdefault(derivation, {})
    if key not in made:
        made[key] = make()
    return made[key]


def _function(source):
    space = {}
    exec(source, space)  # noqa: S102 printed from whole numbers and the letters B and S, nothing else
    return space["program"]


def _arguments(derivation):
    return ", ".join([*USUAL, *derivation.further])


def _nowhere(derivation):
    where = ", ".join(f"{NAMES.get(letter, letter)} {{{letter}}}" for letter in [*USUAL, *derivation.further])
    return f"    raise ValueError(f'derive: no case holds at {where}')"


def _inside_text(case):
    return " and ".join(_range_text(letter, r) for letter, r in case.ranges.items())


def sizes(derivation):
    """A function of the letters in their order: the bytes of each form."""

    def make():
        body = ", ".join(f.text() for f in derivation.forms)
        return _function(f"def program({_arguments(derivation)}):\n    return [{body}]\n")

    return _once(derivation, "sizes", make)


def _range_text(name, r):
    said = f"{r.low} <= {name} <= {r.high}"
    if r.by > 1:
        said += f" and {name} % {r.by} {'==' if r.multiples else '!='} 0"
    return said


def _sum_text(derivation, instant, rounding):
    """An instant's live bytes in Python; `rounding` rounds each tensor up."""
    if rounding == 1:
        return sum_text(derivation.sum_of(instant))
    counts = {}
    for c, n in instant.counts:
        column = derivation.columns[c]
        if not column.host:
            counts[column.form] = counts.get(column.form, 0) + n
    even, parts = {}, []
    for k, n in sorted(counts.items()):
        form = derivation.forms[k]
        if form.constant is not None:
            even[ONE] = even.get(ONE, 0) + n * (-(-form.constant // rounding) * rounding)
        elif all(not m.quotients and c % rounding == 0 for m, c in form.terms):
            for m, c in form.terms:
                even[m] = even.get(m, 0) + n * c
        else:
            parts.append(f"{n}*f{k}")
    return " + ".join([sum_text({m: Fraction(c) for m, c in sorted(even.items())}), *parts])


def _rounded(derivation, case, rounding):
    """The forms that a rounding rounds up, as assignments of f0, f1, ..."""
    if rounding == 1:
        return []
    used = {derivation.columns[c].form for i in case.rounded for c, _ in case.instants[i].counts}
    return [f"f{k} = -(-({derivation.forms[k].text()}) // {rounding}) * {rounding}" for k in sorted(used)]


def compiled(derivation, rounding):
    def make():
        lines = [f"def program({_arguments(derivation)}):"]
        for case in derivation.cases:
            lines.append(f"    if {_inside_text(case)}:")
            texts = list(dict.fromkeys(_sum_text(derivation, case.instants[i], rounding) for i in case.rounded))
            needed = " ".join(texts)
            lines += [
                f"        {line}"
                for line in _rounded(derivation, case, rounding)
                if line.split(" ")[0] in needed.replace("*", " ").split()
            ]
            lines.append(f"        return max({', '.join(texts)})" if len(texts) > 1 else f"        return {texts[0]}")
        lines.append(_nowhere(derivation))
        return _function("\n".join(lines) + "\n")

    return _once(derivation, ("compiled", rounding), make)


def peaks(derivation, batch, sequence, rounding, sizes):
    import numpy

    letters = [*USUAL, *sizes]
    given = zip(letters, (batch, sequence, *sizes.values()), strict=True)
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
            at = {letter: values[inside] for letter, values in zip(letters, arrays, strict=True)}
            rows = _arrays(derivation, case, at, rounding)
            best = numpy.argmax(rows, axis=0)
            peak[inside] = rows[best, numpy.arange(rows.shape[1])]
            where[inside] = start + best
        start += len(case.rounded)
    if left.any():
        first = tuple(numpy.argwhere(left)[0])
        b, s, *rest = (int(values[first]) for values in arrays)
        derivation.case(b, s, **dict(zip(sizes, rest, strict=True)))
    most = int(peak.max(initial=0))
    return peak.astype("int64") if most < 2**63 else peak, where


def _inside(r, values):
    found = (values >= r.low) & (values <= r.high)
    return found if r.by == 1 else found & ((values % r.by == 0) == r.multiples)


def _arrays(derivation, case, sizes, rounding):
    """The live bytes of each instant that may be the peak, a row each; in Python's whole numbers where 64 bits are too few.

    Args:
        sizes: letter -> array.
    """
    import numpy

    forms, columns = derivation.forms, derivation.columns
    most = {letter: int(values.max()) for letter, values in sizes.items()}
    under = lcm(*(c.denominator for f in forms for _, c in f.terms), 1)
    bound = 0
    for i in case.rounded:
        counts = case.instants[i].counts
        bound = max(bound, sum(n * (_most(forms[columns[c].form], most) * under + rounding) for c, n in counts))
    dtype = "int64" if bound < _SAFE else object
    if dtype is object:
        sizes = {k: numpy.array([int(v) for v in x], dtype=object) for k, x in sizes.items()}
    else:
        sizes = {k: x.astype("int64") for k, x in sizes.items()}
    b = sizes["B"]
    if rounding == 1:
        rows = [derivation.sum_of(case.instants[i]) for i in case.rounded]
        at = {m: _valued(m, sizes) for m in {m for row in rows for m in row}}
        return numpy.array([_weighted(row, at, b) for row in rows], dtype=dtype)
    used = sorted({columns[c].form for i in case.rounded for c, _ in case.instants[i].counts})
    at = {m: _valued(m, sizes) for k in used for m, _ in forms[k].terms}
    size = {k: -(-_weighted(dict(forms[k].terms), at, b) // rounding) * rounding for k in used}
    rows = []
    for i in case.rounded:
        total = 0 * b
        for c, n in case.instants[i].counts:
            if not columns[c].host:
                total = total + n * size[columns[c].form]
        rows.append(total)
    return numpy.array(rows, dtype=dtype)


def _valued(monomial, sizes):
    """A monomial's value, or array; `sizes`: letter -> number or array."""
    return monomial.at(sizes["B"], sizes["S"], **{k: v for k, v in sizes.items() if k not in USUAL})


def _weighted(terms, at, b):
    under = lcm(*(Fraction(c).denominator for c in terms.values()), 1)
    total = 0 * b
    for m, c in terms.items():
        total = total + int(c * under) * at[m]
    return total if under == 1 else total // under


def _most(form, point):
    """No less than the form's bytes, with each coefficient taken for positive."""
    return int(sum((abs(c) * _valued(m, point) for m, c in form.terms), Fraction())) + 1


# sympy.


@lru_cache
def symbol(letter: str):
    """A letter, as the book's notation has B and S."""
    import sympy

    return sympy.Symbol(letter, integer=True, positive=True)


@lru_cache(maxsize=4096)
def _monomial(m: Monomial):
    import sympy

    found = sympy.Mul(*(symbol(letter) ** power for letter, power in m.powers))
    for q, power in m.quotients:
        if q.of:
            inside = sympy.Add(*(times * _monomial(one) for one, times in q.of))
        else:
            inside = sympy.Mul(*map(symbol, q.letters))
        whole = sympy.ceiling(inside / q.by) if q.plus == q.by - 1 else sympy.floor((inside + q.plus) / q.by)
        found *= whole**power
    return found


def expression(terms):
    import sympy

    return sympy.Add(*(sympy.Rational(c.numerator, c.denominator) * _monomial(m) for m, c in terms.items()))


def maximum(expressions):
    import sympy

    expressions = list(dict.fromkeys(expressions))
    return expressions[0] if len(expressions) == 1 else sympy.Max(*expressions, evaluate=False)


def above(mine, others):
    import sympy

    return sympy.And(*(sympy.Ge(mine, o, evaluate=False) for o in others)) if others else sympy.true


def by_highest(pairs):
    """Of (live bytes, what is said of them) that which belongs to the most, as a sympy expression."""
    import sympy

    if len({said for _, said in pairs}) == 1:
        return pairs[0][1]
    pieces = []
    for i, (mine, said) in enumerate(pairs[:-1]):
        pieces.append((said, above(mine, [o for j, (o, _) in enumerate(pairs) if j != i])))
    return sympy.Piecewise(*pieces, (pairs[-1][1], True), evaluate=False)


def _condition(r, letter):
    import sympy

    x = symbol(letter)
    parts = [sympy.Eq(x, r.low)] if r.single else [sympy.Ge(x, r.low), sympy.Le(x, r.high)]
    if r.by > 1:
        test = sympy.Eq if r.multiples else sympy.Ne
        parts.append(test(sympy.Mod(x, r.by), 0))
    return sympy.And(*parts)


def cases(derivation, expression):
    """The expression of each case, by pieces where they differ; the last piece's condition is left to `conditions`."""
    import sympy

    main = expression(derivation.main)
    pieces = []
    for case in derivation.cases:
        mine = main if case is derivation.main else expression(case)
        at = {symbol(letter): r.low for letter, r in case.ranges.items() if r.single}
        # pieces are not put in: sympy would compare them all again, for minutes
        compared = not (mine.has(sympy.Piecewise) or main.has(sympy.Piecewise))
        if mine != main and not (compared and mine.subs(at) == main.subs(at)):
            pieces.append(
                (mine, sympy.And(*(_condition(r, x) for x, r in case.ranges.items() if x in derivation.letters)))
            )
    return sympy.Piecewise(*pieces, (main, True), evaluate=False) if pieces else main


def unlike(derivation) -> list:
    """The cases whose peak is not the main one's formula."""
    found = []
    for case in derivation.cases:
        at = {symbol(letter): r.low for letter, r in case.ranges.items() if r.single}
        one, other = (maximum([derivation.expression(c.instants[i]) for i in c.peak]) for c in (case, derivation.main))
        if one != other and one.subs(at) != other.subs(at):
            found.append(case)
    return found


def conditions(derivation):
    said = []
    for letter in derivation.letters:
        name = NAMES.get(letter, letter)
        low, high = derivation.range(name)
        x = symbol(letter)
        words, held = (
            f"a {name} from {low:,} to {high:,}" if letter in USUAL else f"{name} from {low:,} to {high:,}",
            None,
        )
        held = (x >= low) & (x <= high)
        ranges = {case.ranges[letter] for case in derivation.cases}
        if len({r.by for r in ranges}) == 1 and all(r.by > 1 and r.multiples for r in ranges):
            import sympy

            (by,) = {r.by for r in ranges}
            words, held = f"{words}, a multiple of {by}", held & sympy.Eq(sympy.Mod(x, by), 0)
        said.append((words, held))
    for ranges, why in derivation.refused:
        said.append((f"not {_where(ranges, derivation)} ({why})", None))
    return said


def _where(ranges, derivation):
    def one(name, r):
        if r.single:
            return f"{name} {r.low:,}"
        multiples = "" if r.by == 1 else f", {'multiples' if r.multiples else 'no multiples'} of {r.by}"
        return f"{name} {r.low:,} to {r.high:,}{multiples}"

    letters = [*USUAL, *derivation.further]
    said = [
        one(NAMES.get(letter, letter), r)
        for letter, r in zip(letters, ranges, strict=True)
        if letter in derivation.letters and not _all(derivation, letter, r)
    ]
    return ", ".join(said) or "anywhere"


def _all(derivation, letter, r):
    low, high = derivation.range(NAMES.get(letter, letter))
    return r.by == 1 and r.low <= low and high <= r.high


def place(derivation, case) -> str:
    """Where a case holds, in words."""
    return _where(case.ranges.values(), derivation)


def latex(derivation):
    import sympy

    return sympy.latex(derivation.peak, mode="plain")


def readable(terms) -> str:
    """A sum of monomials for people: thousands apart, no stars."""
    if not terms:
        return "0"
    parts = []
    for m, c in sorted(terms.items(), key=lambda t: (-(t[0].degree + len(t[0].quotients)), t[1] < 0, t[0])):
        factors = _factors(m)
        number = f"{abs(c).numerator:,}" + (f"/{c.denominator}" if c.denominator > 1 else "")
        text = " ".join(([] if abs(c) == 1 and factors else [number]) + factors)
        parts.append(("− " if c < 0 else "+ ") + text)
    return " ".join(parts).removeprefix("+ ")


def _factors(m):
    """A monomial's letters and quotients, for people."""
    factors = [letter + _RAISED.get(power, f"^{power}") for letter, power in m.powers]
    for q, power in m.quotients:
        inside = readable({one: Fraction(times) for one, times in q.of}) if q.of else " ".join(q.letters)
        bare = f"({inside})" if q.of and len(q.of) > 1 else inside
        plus = f"({inside} + {q.plus})" if q.plus else bare
        over = f"⌈{bare}/{q.by}⌉" if q.plus == q.by - 1 else f"⌊{plus}/{q.by}⌋"
        factors.append(over + _RAISED.get(power, f"^{power}"))
    return factors


_RAISED = {1: "", 2: "²", 3: "³", 4: "⁴"}


def javascript(derivation, rounding):
    pieces = []
    for case in derivation.cases:
        texts = list(dict.fromkeys(_sum_text(derivation, case.instants[i], rounding) for i in case.rounded))
        texts = [_script(t) for t in texts]
        lines = [_script(line) for line in _rounded(derivation, case, rounding)]
        test = _test(case)
        before = "".join(f"const {line}; " for line in lines)
        pieces.append(f"if ({test}) {{ {before}return Math.max({', '.join(texts)}); }} ")
    return f"(v) => {{ {_read(derivation)}{''.join(pieces)}return NaN; }}"


def _read(derivation):
    """The letters' values, in JavaScript."""
    return f"const {', '.join(f'{x} = v.{NAMES.get(x, x)}' for x in [*USUAL, *derivation.further])}; "


def at_the_peak(derivation, columns=None, number=None):
    """(Python function of the letters in their order, JavaScript of an object with them): bytes of some columns at the peak.

    Without columns, the `number` of the instant; without that too, the number of the case that holds.
    """
    lines, script = [f"def program({_arguments(derivation)}):"], ""
    for place, case in enumerate(derivation.cases):
        chosen = [case.instants[i] for i in case.peak]
        totals = [sum_text(derivation.sum_of(i)) for i in chosen]
        if columns is not None:
            said = [sum_text(derivation.sum_of(i, columns=columns)) for i in chosen]
        else:
            said = [str(number(i)) for i in chosen] if number else [str(place)]
        one = said[0] if len(set(said)) == 1 else ""
        lines.append(f"    if {_inside_text(case)}:")
        if one:
            lines.append(f"        return {one}")
        else:
            lines.append(f"        live = [{', '.join(totals)}]")
            lines.append(f"        return [{', '.join(said)}][live.index(max(live))]")
        body = f"return {_script(one)};" if one else (
            f"const live = [{', '.join(map(_script, totals))}]; "
            f"return [{', '.join(map(_script, said))}][live.indexOf(Math.max(...live))];"
        )  # fmt: skip
        script += f"if ({_test(case)}) {{ {body} }} "
    lines.append(_nowhere(derivation))
    return _function("\n".join(lines) + "\n"), f"(v) => {{ {_read(derivation)}{script}return NaN; }}"


def _test(case):
    """Whether a case holds, in JavaScript."""
    text = _inside_text(case)
    for letter in case.ranges:
        text = text.replace(f" <= {letter} <= ", f" <= {letter} && {letter} <= ")
    return text.replace(" and ", " && ").replace("==", "===").replace("!=", "!==")


def _script(text):
    """Python's whole quotients as JavaScript's: // becomes Math.floor(… / …)."""
    found, rest = "", text
    while "//" in rest:
        left, _, right = rest.partition("//")
        left = left.rstrip()
        depth, start = 0, len(left)
        for start in range(len(left) - 1, -1, -1):  # the bracket that the quotient's dividend is in
            depth += {")": 1, "(": -1}.get(left[start], 0)
            if depth == 0:
                break
        while start and left[start - 1] == "-":
            start -= 1
        right = right.lstrip()
        digits = len(right) - len(right.lstrip("0123456789"))
        rest = f"{left[:start]}Math.floor({left[start:]} / {right[:digits]}){right[digits:]}"
    return found + rest


def winners(derivation, case):
    """Which of a case's instants are the peak somewhere on a grid of powers of two and what lies between."""
    import numpy

    halves = 2 if len(derivation.letters) < 3 else 1

    def axis(letter, r):
        if letter not in derivation.letters:
            return numpy.array([r.low], dtype="int64")
        steps = sorted({r.low, r.high, *(int(2 ** (k / halves)) for k in range(32 * halves))})
        found = [v for v in steps if v in r] or r.some([], 1)
        return numpy.array(found, dtype="int64")

    axes = numpy.meshgrid(*(axis(letter, r) for letter, r in case.ranges.items()))
    rows = _arrays(derivation, case, {letter: x.ravel() for letter, x in zip(case.ranges, axes, strict=True)}, 1)
    seen = {case.rounded[i] for i in numpy.unique(numpy.argmax(rows, axis=0))}
    return [i for i in case.peak if i in seen] or list(case.peak[:1])
