"""A derivation in other languages: Python for whole numbers, numpy, sympy, LaTeX, JavaScript."""

from fractions import Fraction
from functools import lru_cache
from math import lcm
from weakref import WeakKeyDictionary

from .. import checks
from .forms import ONE, Monomial, sum_text

_SAFE = 2**62
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


def sizes(derivation):
    """A function of batch and sequence: the bytes of each form."""

    def make():
        body = ", ".join(f.text() for f in derivation.forms)
        return _function(f"def program(B, S):\n    return [{body}]\n")

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
        lines = ["def program(B, S):"]
        for case in derivation.cases:
            lines.append(f"    if {_range_text('B', case.batch)} and {_range_text('S', case.sequence)}:")
            texts = list(dict.fromkeys(_sum_text(derivation, case.instants[i], rounding) for i in case.rounded))
            needed = " ".join(texts)
            lines += [
                f"        {line}"
                for line in _rounded(derivation, case, rounding)
                if line.split(" ")[0] in needed.replace("*", " ").split()
            ]
            lines.append(f"        return max({', '.join(texts)})" if len(texts) > 1 else f"        return {texts[0]}")
        lines.append("    raise ValueError(f'derive: no case holds at batch {B}, sequence {S}')")
        return _function("\n".join(lines) + "\n")

    return _once(derivation, ("compiled", rounding), make)


def peaks(derivation, batch, sequence, rounding):
    import numpy

    given = {"batch": batch, "sequence": sequence}
    batch, sequence = numpy.broadcast_arrays(*(checks.whole_numbers("derive", *one) for one in given.items()))
    shape, left = batch.shape, numpy.ones(batch.shape, bool)
    peak, where = numpy.zeros(shape, object), numpy.zeros(shape, "int64")
    start = 0
    for case in derivation.cases:
        inside = left & _inside(case.batch, batch) & _inside(case.sequence, sequence)
        if inside.any():
            left &= ~inside
            b, s = batch[inside], sequence[inside]
            rows = _arrays(derivation, case, b, s, rounding)
            best = numpy.argmax(rows, axis=0)
            peak[inside] = rows[best, numpy.arange(len(b))]
            where[inside] = start + best
        start += len(case.rounded)
    if left.any():
        first = tuple(numpy.argwhere(left)[0])
        derivation.case(int(batch[first]), int(sequence[first]))
    most = int(peak.max(initial=0))
    return peak.astype("int64") if most < 2**63 else peak, where


def _inside(r, values):
    found = (values >= r.low) & (values <= r.high)
    return found if r.by == 1 else found & ((values % r.by == 0) == r.multiples)


def _arrays(derivation, case, b, s, rounding):
    """The live bytes of each instant that may be the peak, a row each; in Python's whole numbers where 64 bits are too few."""
    import numpy

    forms, columns = derivation.forms, derivation.columns
    most = int(b.max()), int(s.max())
    under = lcm(*(c.denominator for f in forms for _, c in f.terms), 1)
    bound = 0
    for i in case.rounded:
        counts = case.instants[i].counts
        bound = max(bound, sum(n * (_most(forms[columns[c].form], most) * under + rounding) for c, n in counts))
    dtype = "int64" if bound < _SAFE else object
    if dtype is object:
        b, s = (numpy.array([int(v) for v in x], dtype=object) for x in (b, s))
    else:
        b, s = b.astype("int64"), s.astype("int64")
    if rounding == 1:
        rows = [derivation.sum_of(case.instants[i]) for i in case.rounded]
        at = {m: m.at(b, s) for m in {m for row in rows for m in row}}
        return numpy.array([_weighted(row, at, b) for row in rows], dtype=dtype)
    used = sorted({columns[c].form for i in case.rounded for c, _ in case.instants[i].counts})
    at = {m: m.at(b, s) for k in used for m, _ in forms[k].terms}
    size = {k: -(-_weighted(dict(forms[k].terms), at, b) // rounding) * rounding for k in used}
    rows = []
    for i in case.rounded:
        total = 0 * b
        for c, n in case.instants[i].counts:
            if not columns[c].host:
                total = total + n * size[columns[c].form]
        rows.append(total)
    return numpy.array(rows, dtype=dtype)


def _weighted(terms, at, b):
    under = lcm(*(Fraction(c).denominator for c in terms.values()), 1)
    total = 0 * b
    for m, c in terms.items():
        total = total + int(c * under) * at[m]
    return total if under == 1 else total // under


def _most(form, point):
    """No less than the form's bytes, with each coefficient taken for positive."""
    return int(sum((abs(c) * m.at(*point) for m, c in form.terms), Fraction())) + 1


# sympy.


@lru_cache
def symbols():
    """B and S, as the book's notation has them."""
    import sympy

    return tuple(sympy.Symbol(letter, integer=True, positive=True) for letter in "BS")


def _monomial(m: Monomial):
    import sympy

    B, S = symbols()
    found = B**m.b * S**m.s
    for q, power in m.quotients:
        inside = {"B": B, "S": S, "BS": B * S}[q.letters]
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

    x = symbols()["BS".index(letter)]
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
        at = {x: r.low for x, r in zip(symbols(), (case.batch, case.sequence), strict=True) if r.single}
        # pieces are not put in: sympy would compare them all again, for minutes
        compared = not (mine.has(sympy.Piecewise) or main.has(sympy.Piecewise))
        if mine != main and not (compared and mine.subs(at) == main.subs(at)):
            pieces.append((mine, sympy.And(_condition(case.batch, "B"), _condition(case.sequence, "S"))))
    return sympy.Piecewise(*pieces, (main, True), evaluate=False) if pieces else main


def unlike(derivation) -> list:
    """The cases whose peak is not the main one's formula."""
    found = []
    for case in derivation.cases:
        at = {x: r.low for x, r in zip(symbols(), (case.batch, case.sequence), strict=True) if r.single}
        one, other = (maximum([derivation.expression(c.instants[i]) for i in c.peak]) for c in (case, derivation.main))
        if one != other and one.subs(at) != other.subs(at):
            found.append(case)
    return found


def conditions(derivation):
    said = []
    for letter, name in (("B", "batch"), ("S", "sequence")):
        if letter not in derivation.letters:
            continue
        low, high = derivation.range(name)
        x = symbols()["BS".index(letter)]
        said.append((f"a {name} from {low:,} to {high:,}", (x >= low) & (x <= high)))
    for batches, sequences, why in derivation.refused:
        said.append((f"not {_where(batches, sequences, derivation)} ({why})", None))
    return said


def _where(batches, sequences, derivation):
    def one(name, r):
        if r.single:
            return f"{name} {r.low:,}"
        multiples = "" if r.by == 1 else f", {'multiples' if r.multiples else 'no multiples'} of {r.by}"
        return f"{name} {r.low:,} to {r.high:,}{multiples}"

    named = (("batch", "B", batches), ("sequence", "S", sequences))
    said = [
        one(name, r)
        for name, letter, r in named
        if letter in derivation.letters and (r.by > 1 or (r.low, r.high) != derivation.range(name))
    ]
    return ", ".join(said) or "anywhere"


def place(derivation, case) -> str:
    """Where a case holds, in words."""
    return _where(case.batch, case.sequence, derivation)


def latex(derivation):
    import sympy

    return sympy.latex(derivation.peak, mode="plain")


def readable(terms) -> str:
    """A sum of monomials for people: thousands apart, no stars."""
    if not terms:
        return "0"
    parts = []
    for m, c in sorted(terms.items(), key=lambda t: (-(t[0].b + t[0].s + len(t[0].quotients)), t[1] < 0, t[0])):
        factors = []
        for letter, power in (("B", m.b), ("S", m.s)):
            factors += [letter + {1: "", 2: "²", 3: "³"}.get(power, f"^{power}")] if power else []
        for q, power in m.quotients:
            inside = " ".join(q.letters)
            over = f"⌈{inside}/{q.by}⌉" if q.plus == q.by - 1 else f"⌊({inside} + {q.plus})/{q.by}⌋"
            factors.append(over + {1: "", 2: "²"}.get(power, f"^{power}"))
        number = f"{abs(c).numerator:,}" + (f"/{c.denominator}" if c.denominator > 1 else "")
        text = " ".join(([] if abs(c) == 1 and factors else [number]) + factors)
        parts.append(("− " if c < 0 else "+ ") + text)
    return " ".join(parts).removeprefix("+ ")


def javascript(derivation, rounding):
    pieces = []
    for case in derivation.cases:
        texts = list(dict.fromkeys(_sum_text(derivation, case.instants[i], rounding) for i in case.rounded))
        texts = [_script(t) for t in texts]
        lines = [_script(line) for line in _rounded(derivation, case, rounding)]
        test = _test(case)
        before = "".join(f"const {line}; " for line in lines)
        pieces.append(f"if ({test}) {{ {before}return Math.max({', '.join(texts)}); }} ")
    return "(v) => { const B = v.batch, S = v.sequence; " + "".join(pieces) + "return NaN; }"


def at_the_peak(derivation, columns=None):
    """(Python function of batch and sequence, JavaScript of an object with both): bytes of some columns at the peak.

    Without columns, the number of the case that holds.
    """
    lines, script = ["def program(B, S):"], ""
    for number, case in enumerate(derivation.cases):
        chosen = [case.instants[i] for i in case.peak]
        totals = [sum_text(derivation.sum_of(i)) for i in chosen]
        said = [str(number)] if columns is None else [sum_text(derivation.sum_of(i, columns=columns)) for i in chosen]
        one = said[0] if len(set(said)) == 1 else ""
        test = [_range_text(letter, r) for letter, r in (("B", case.batch), ("S", case.sequence))]
        lines.append(f"    if {test[0]} and {test[1]}:")
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
    lines.append("    raise ValueError(f'derive: no case holds at batch {B}, sequence {S}')")
    return _function("\n".join(lines) + "\n"), f"(v) => {{ const B = v.batch, S = v.sequence; {script}return NaN; }}"


def _test(case):
    """Whether a case holds, in JavaScript."""
    return " && ".join(
        t.replace(" <= B <= ", " <= B && B <= ").replace(" <= S <= ", " <= S && S <= ").replace(" and ", " && ")
        for t in (_range_text("B", case.batch), _range_text("S", case.sequence))
    ).replace("==", "===").replace("!=", "!==")  # fmt: skip


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

    def axis(r):
        steps = sorted({r.low, r.high, *(int(2 ** (k / 2)) for k in range(64))})
        found = [v for v in steps if v in r] or r.some([], 1)
        return numpy.array(found, dtype="int64")

    b, s = (x.ravel() for x in numpy.meshgrid(axis(case.batch), axis(case.sequence)))
    rows = _arrays(derivation, case, b, s, 1)
    seen = {case.rounded[i] for i in numpy.unique(numpy.argmax(rows, axis=0))}
    return [i for i in case.peak if i in seen] or list(case.peak[:1])
