"""What every area draws from, and what it may end in."""

import contextlib
import math
import os
import re
from decimal import Decimal
from fractions import Fraction

import numpy
from hypothesis import strategies as st

import everybyte as eb

#: What is nobody's number, name or choice.
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8), st.just([]), st.just({}), st.just({"a": 1}),
    st.sampled_from(["fsdp", "float16", "0", "-1", "nan", "gpt2", "cuda", "../..", "<b>", "\ud800", "$\\frac{$", "\x00", "\x1b[2J", "a\nb"]),
)  # fmt: skip
#: What a terminal takes for more than a letter.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
SMALL = eb.Model(name="small", layers=2, width=48, heads=3, vocabulary=101, positions=40)
STEP = eb.Setup(batch=1, sequence=8)


class Refused(Exception):
    """A clear error."""


class LeftOut(Exception):
    """A subject that cannot be tried here, and why."""


class _Text(str):
    """Text of another class."""


def mostly(strategy, other, one_in=6):
    """The first strategy, and one time in so many the other; `one_of` knows no weights."""
    return st.integers(1, one_in).flatmap(lambda n: other if n == one_in else strategy)


def junk_or(strategy, one_in=6):
    """A strategy with junk among what it draws."""
    return mostly(strategy, JUNK, one_in)


def odd(choices=("x",)):
    """Values of Python that are none of the choices, or look like one."""
    one = st.sampled_from(list(choices))
    forms = (
        lambda v: numpy.array([v]), lambda v: numpy.array(v), lambda v: numpy.array([v, v]), lambda v: [v], lambda v: (v,), lambda v: {v},
        lambda v: str(v).encode(), lambda v: _Text(v), lambda v: numpy.str_(v), lambda v: {v: v}, lambda v: str(v).upper(), lambda v: f" {v}",
        lambda v: v,
    )  # fmt: skip
    others = [
        object(), float, len, ..., NotImplemented, 1j, Decimal("1.5"), Fraction(1, 3), math, range(3), b"1", bytearray(8), memoryview(b"x"),
        numpy.float32(1), numpy.int64(4), numpy.bool_(True), numpy.zeros((0,)), numpy.zeros((2, 2)), numpy.datetime64("2001-01-01"),
        "9" * 10_000, "x" * 10_000, 10**5000, -(10**400), ValueError("x"), iter([1]),
    ]  # fmt: skip
    return st.one_of(st.builds(lambda form, v: form(v), st.sampled_from(forms), one), JUNK, st.sampled_from(others))


def whole(least, most):
    """Whole numbers, near the bounds as well as far."""
    return st.one_of(
        st.integers(least, min(most, least + 8)), st.integers(least, most), st.just(most), st.just(most + 1)
    )


def cut(draw, text, pieces, most=12):
    """A text, or bytes, with one place replaced by one of the pieces."""
    at = draw(st.integers(0, len(text)))
    return text[:at] + draw(pieces) + text[at + draw(st.integers(0, most)) :]


def printable(text):
    """Assert that a text holds nothing that a terminal obeys, and return it."""
    assert not (found := CONTROL.search(text)), f"control character {found[0]!r} in {text[:200]!r}"
    return text


def tags(html, *more):
    """Assert that HTML has no tag that somebody else brought."""
    own = {
        *"table thead tbody tr th td p b ul li br span div code details summary strong em caption pre h4 hr a sup sub svg".split(),
        *more,
    }
    assert set(re.findall(r"<(\w+)", html)) <= own, html[:300]
    assert not re.search(r"<\w[^>]*\son\w+\s*=", html), html[:300]


@contextlib.contextmanager
def environment(name, value):
    """Within it the variable has that value."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        os.environ |= {name: before} if before is not None else {}
