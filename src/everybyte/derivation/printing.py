"""A derivation as code: in Python and in JavaScript."""

from collections import Counter
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from ..step.amount import NAMES, Amount


class Language(NamedTuple):
    """Templates of code: a quotient rounded down, a size rounded up, a maximum, the item at the maximum of `live`."""

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


@lru_cache(maxsize=16)
def peak(derivation, rounding):
    """The two programs of the peak's bytes."""

    def body(case, language):
        lines, texts = _instants(derivation, case, rounding, language)
        return lines, language.most.format(", ".join(dict.fromkeys(texts)))

    return programs(derivation, body)


@lru_cache(maxsize=16)
def highest(derivation, rounding):
    """A Python function of the letters in their order: (the peak's bytes, the number of its instant in `instants`)."""
    before = {id(case): sum(len(c.rounded) for c in derivation.cases[:n]) for n, case in enumerate(derivation.cases)}

    def body(case, language):
        lines, texts = _instants(derivation, case, rounding, language)
        return [*lines, f"live = [{', '.join(texts)}]"], f"max(live), {before[id(case)]} + live.index(max(live))"

    return programs(derivation, body)[0]


def _instants(derivation, case, rounding, language):
    """(assignments of f1, ...: form 1, ... rounded up; live bytes of each instant that can be the peak), as code."""
    rounded = derivation.used(case) if rounding > 1 else ()
    lines = [f"f{k} = {language.up.format(derivation.forms[k].text(language.whole), rounding)}" for k in rounded]
    return lines, [_live(derivation, instant, rounding, language) for instant in case.rounded]


def _live(derivation, instant, rounding, language):
    """An instant's live bytes, each tensor rounded up; f1 stands for form 1 where that is then no sum of monomials."""
    even, others, counts = [], [], Counter()
    for column, n in derivation.there(instant):
        counts[column.form] += n
    for k, n in sorted(counts.items()):
        amount = derivation.forms[k] if rounding == 1 else derivation.forms[k].rounded(rounding)
        if amount is None:
            others.append(f"{n}*f{k}")
        else:
            even.append((amount, n))
    return " + ".join([Amount.total(even).text(language.whole), *others])


def at_the_peak(derivation, said):
    """The two programs of something about the instant at which the most bytes live.

    Args:
        said: called with a case, one of its instants, and how a quotient is written; gives code.
    """

    def body(case, language):
        texts = [said(case, instant, language.whole) for instant in case.peak]
        if len(set(texts)) == 1:
            return (), texts[0]
        totals = ", ".join(derivation.live(instant).text(language.whole) for instant in case.peak)
        return (f"live = [{totals}]",), language.first.format(", ".join(texts))

    return programs(derivation, body)


def winners(derivation, case):
    """The instants of a case that are the peak at some point of a grid of powers of two (and of their square roots)."""
    halves = 2 if len(derivation.letters) < 3 else 1
    powers = [int(2 ** (k / halves)) for k in range(32 * halves)]

    def axis(letter, r):
        if letter not in derivation.letters:
            return [r.low]
        return sorted({v for v in (r.low, r.high, *powers) if v in r}) or r.some([], 1)

    live = ", ".join(derivation.live(instant).text() for instant in case.rounded)
    arguments = ", ".join(derivation.every)
    number = _function(f"def program({arguments}):\n    live = [{live}]\n    return live.index(max(live))\n")
    points = product(*(axis(letter, r) for letter, r in case.ranges.items()))
    seen = {case.rounded[n].place for n in {number(*point) for point in points}}
    return [instant for instant in case.peak if instant.place in seen] or list(case.peak[:1])
