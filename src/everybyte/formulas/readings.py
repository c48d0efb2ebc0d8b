"""Formulas read off courses: many courses, one per combination of switches, become one expression with switches.

A course describes one structure, such as flash attention with dropout. Its sizes are polynomials in the letters. A formula is
the polynomial in letters and 0/1 switches that equals the courses at every combination: each switch multiplies what the
courses with it have more than those without it (`merged`). A formula declares as a tree which switches it depends on. The tests
compare every formula with courses of models and setups drawn at random.
"""

from functools import lru_cache
from itertools import count

import sympy
from sympy import QQ
from sympy.polys.rings import ring

from ..ask.setup import Setup
from ..catalog import Model
from ..step.course import Reading
from ..theory import trace
from ..theory.letters import text
from . import symbols

#: The letters that the sizes of courses may have.
_LETTERS = (
    "B", "S", "L", "H", "A", "A_kv", "D", "F", "V", "N", "N_max", "K", "n_c", "n_a", "w", "w_s", "c", "s_b", "m_w",
)  # fmt: skip
#: Switch -> its expression in a formula. The last two are 0 for one sequence, or one head: then less is copied.
SWITCHES = {
    name: getattr(symbols, name)
    for name in (
        "half", "autocast", "fp16", "moved", "eager", "dropped", "narrow", "tied", "chunked", "segmented", "selective",
        "accumulated", "qkv_bias", "out_bias", "ffn_bias", "norm_bias",
    )
} | {"several": sympy.Min(symbols.B - 1, 1), "heads": sympy.Min(symbols.A - 1, 1)}  # fmt: skip
_PLACES = 24
_RING, *_GENERATORS = ring([*_LETTERS, *SWITCHES, *(f"q{i}" for i in range(_PLACES))], QQ)
_BY_NAME = dict(zip(map(str, _GENERATORS), _GENERATORS, strict=True))
_SWITCH = {name: _BY_NAME[name] for name in SWITCHES}
_INDEX = {name: i for i, name in enumerate(map(str, _GENERATORS))}
_EXPRESSIONS = [getattr(symbols, name) for name in _LETTERS] + list(SWITCHES.values()) + [None] * _PLACES


def letter(name):
    """The polynomial of one letter or switch."""
    return _BY_NAME[name]


# Sizes as polynomials. A rounded quotient is a letter of its own.


@lru_cache(None)
def _quotient(a, b, up):
    i = next(_NEXT)
    quotient = expression(a) / expression(b)
    _EXPRESSIONS[i] = sympy.ceiling(quotient) if up else quotient
    return _GENERATORS[i]


_NEXT = count(len(_LETTERS) + len(SWITCHES))


def _up(a, b):
    return _quotient(_RING(a), _RING(b), True)


def _whole(a, b):
    found, left = divmod(_RING(a), _RING(b))
    return found if not left else _quotient(_RING(a), _RING(b), False)


@lru_cache(None)
def polynomial(said, family="gpt"):
    """The polynomial of a size as a course writes it, a text. In a GPT, A D is written as H."""
    same = {"W": "H"} | ({"A_kv": "A"} if family == "gpt" else {})
    letters = {name: _BY_NAME[same.get(name, name)] for name in (*_LETTERS, "W")}
    found = _RING(eval(said, {"__builtins__": {}}, {"up": _up, "whole": _whole} | letters))  # noqa: S307  a course's own
    return _by_width(found) if family == "gpt" else found


def _by_width(found):
    """A polynomial with every product A D replaced by H."""
    a, d, h = (_INDEX[name] for name in ("A", "D", "H"))
    terms = {}
    for powers, factor in found.terms():
        both, powers = min(powers[a], powers[d]), list(powers)
        powers[a], powers[d], powers[h] = powers[a] - both, powers[d] - both, powers[h] + both
        terms[tuple(powers)] = terms.get(tuple(powers), 0) + factor
    return _RING.from_dict(terms)


def expression(found) -> sympy.Expr:
    """A polynomial as a sympy expression; of terms with the same switches, the common factor is taken out."""
    groups = {}
    first, last = len(_LETTERS), len(_LETTERS) + len(SWITCHES)
    for powers, factor in _RING(found).terms():
        letters = powers[:first] + (0,) * len(SWITCHES) + powers[last:]
        groups.setdefault(powers[first:last], []).append((letters, factor))
    total = []
    for switches, terms in groups.items():
        common = tuple(map(min, *(powers for powers, _ in terms))) if len(terms) > 1 else terms[0][0]
        inner = [_term([p - q for p, q in zip(powers, common, strict=True)], factor) for powers, factor in terms]
        total.append(sympy.Mul(_term((0,) * first + switches), _term(common), sympy.Add(*inner)))
    return sympy.Add(*total)


def _term(powers, factor=QQ(1)):  # noqa: B008  a constant
    number = sympy.Rational(factor.numerator, factor.denominator)
    return sympy.Mul(number, *(_EXPRESSIONS[i] ** p for i, p in enumerate(powers) if p))


# Courses, one for each combination of switches.


def _gpt(on):
    """A GPT and a setup with these switches on. The dimensions are small, and none is trivial unless a switch says so."""
    heads, width, segment = 2 if on.get("heads", 1) else 1, 12 if on.get("narrow") else 8, on.get("segment", 5)
    biases = {name: bool(on.get(name, 1)) for name in ("qkv_bias", "out_bias", "ffn_bias", "norm_bias")}
    model = Model(
        layers=24 if on.get("segmented") else 4, width=heads * width, heads=heads, vocabulary=97, positions=64, ffn_width=40,
        tied=bool(on.get("tied", 1)), **biases,
    )  # fmt: skip
    precision = on.get("precision", "fp32")
    saving = (
        "every-k" if on.get("segmented") else "selective" if on.get("selective") else on.get("checkpointing", "none")
    )
    return model, Setup(
        batch=4 if on.get("several", 1) else 1, sequence=16, precision="bf16-master" if precision == "moved" else precision,
        master_gradients="fp32" if precision == "moved" else "bf16", attention="eager" if on.get("eager") else "flash",
        dropout=0.1 if on.get("dropped") else 0.0, loss="chunked" if on.get("chunked") else "plain",
        accumulation=5 if on.get("accumulated") else 1, checkpointing=saving, checkpoint_every=segment if on.get("segmented") else 2,
    )  # fmt: skip


def _llama(on):
    """A Llama and the same setup."""
    _, setup = _gpt(on)
    model = Model(
        layers=4, width=24, heads=2, kv_heads=2, head_width=8, vocabulary=97, positions=64, learned_positions=0, ffn_width=40,
        gated=True, fused=False, tied=False, qkv_bias=False, out_bias=False, ffn_bias=False, norm="rmsnorm",
    )  # fmt: skip
    return model, setup


@lru_cache(256)
def _reading(on, family):
    model, setup = (_gpt if family == "gpt" else _llama)(dict(on))
    return Reading(trace(model, setup), _Polynomials(family))


class _Polynomials:
    """The amounts that a `Reading` asks for, as polynomials."""

    def __init__(self, family):
        self.family = family

    def size(self, piece):
        return _size(piece.key, self.family)

    def times(self, repeat):
        return polynomial(text(repeat.times), self.family)


@lru_cache(None)
def _size(key, family):
    numbers, width, times = (polynomial(said, family) for said in key)
    return numbers * width * times


def reading(family="gpt", **on) -> Reading:
    """The course with these switches on, read in polynomials."""
    return _reading(tuple(sorted(on.items())), family)


# Many courses as one polynomial.


def both(*names, then=()):
    """A tree for `merged` with every combination of these switches; `then`: the tree below each."""
    return (names[0], both(*names[1:], then=then), both(*names[1:], then=then)) if names else then


#: The precisions whose steps differ, the simplest first.
PRECISIONS = ("fp32", "bf16", "bf16-mixed", "fp16-mixed")


def merged(read, tree=(), moved=False):
    """The polynomial in precision and the switches of a tree that equals `read` at every combination.

    Args:
        read: called with the precision and the switches by name; gives a polynomial.
        tree: (switch, tree where it is off, tree where it is on); () where no further switch matters.
        moved: whether gradients that move to a buffer at once make a difference.
    """
    if tree:
        name, off, on = tree
        without = merged(lambda **more: read(**{name: 0} | more), off, moved)
        return without + _SWITCH[name] * (merged(lambda **more: read(**{name: 1} | more), on, moved) - without)
    full, low, cast, fp16 = (_RING(read(precision=precision)) for precision in PRECISIONS)
    full, low = _like(full, cast), _like(low, cast)
    found = full + _SWITCH["half"] * (low - full) + _SWITCH["autocast"] * (cast - low) + _SWITCH["fp16"] * (fp16 - cast)
    return found + _SWITCH["moved"] * (_like(_RING(read(precision="moved")), cast) - low) if moved else found


def more(read, switch, tree=()):
    """What a switch adds, as `merged` gives it, where that is the same under every other switch outside of `tree`."""
    return merged(read, (switch, tree, tree)) - merged(read, tree)


def _like(found, cast):
    """The polynomial `found`, of a step without autocast, with c in place of w where the autocast step `cast` has c: there w = c."""
    w, c, terms = _INDEX["w"], _INDEX["c"], {}
    for powers, factor in found.terms():
        product = powers[:w] + (powers[w] - 1,) + powers[w + 1 : c] + (powers[c] + 1,) + powers[c + 1 :]
        weights = min(max(cast.get(powers, 0), 0), factor) if powers[w] and factor > 0 else factor
        for where, amount in ((product, factor - weights), (powers, weights)):
            if amount:
                terms[where] = terms.get(where, 0) + amount
    return _RING.from_dict(terms)
