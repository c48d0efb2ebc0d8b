"""Right answers in every form, mistakes by name, nothing raised and nothing run."""

from fractions import Fraction

import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import everybyte as eb
from everybyte.teach import Exercise, check, exercises, expressions, hint
from everybyte.teach.exercise import _HINTS_TAKEN, bank, chapters, exercise

L, H, V, N = sp.symbols("L H V N")
ALL = [e for chapter in chapters() for e in bank(chapter).values()]
NUMBERS = [e for e in ALL if e.accepts == "number"]
STATES = 12_460_889_600


def _one(**fields):
    base = {"id": "99.1", "title": "t", "difficulty": 1, "minutes": 1, "answer": lambda: 3 * 2**30, "hints": ("a", "b")}
    return Exercise(**base | fields)


ids = pytest.mark.parametrize("e", ALL, ids=lambda e: e.id)


@ids
def test_an_exercise_accepts_its_own_answer(e):
    assert e.judge(e.answer()).right


@ids
def test_each_mistake_is_refused_by_its_name(e):
    for message, wrong in e.mistakes.items():
        verdict = e.judge(wrong() if callable(wrong) else wrong)
        assert verdict.kind == "wrong"
        assert message[1:] in verdict.text


@ids
def test_an_exercise_is_complete(e):
    assert e.mistakes
    assert len(set(e.hints)) == 2 and all(len(h.split()) > 5 for h in e.hints)
    assert e.judge(...).kind == "open"
    assert e.wanted in e.judge(...).text
    assert exercise(e.id) is e


def test_every_chapter_in_the_bank_has_exercises():
    assert {"11", "12", "13"} <= set(chapters())
    assert all(bank(c) for c in chapters())
    assert len({e.id for e in ALL}) == len(ALL)


@pytest.mark.parametrize("e", NUMBERS, ids=lambda e: e.id)
@given(times=st.fractions(min_value="1.001", max_value=1000), up=st.booleans())
@settings(max_examples=settings().max_examples // 4)
def test_beyond_its_tolerance_an_answer_is_refused(e, times, up):
    right = e.right()
    off = e.slack(right) * times or times
    assert not e.judge(right + off if up else right - off).right


@pytest.mark.parametrize(
    "answer",
    [
        STATES,
        float(STATES),
        "11.61 GiB",
        "11.605 GiB",
        11.61,
        "12.4608896 GB",
        "12,460,889,600 B",
        "12_460_889_600 bytes",
    ]
    + [sp.Integer(STATES), sp.Rational(1161, 100), Fraction(1161, 100), 8 * eb.model("gpt2-xl").parameters],
)
def test_an_amount_in_any_form(answer):
    assert check("12.2", answer).right


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (11.64, "Close"),
        (13, "too large"),
        (1, "too small"),
        ("12.46 GiB", "GB for GiB"),
        ("11.61 GB", "GiB for GB"),
        (STATES * 8, "eight bits"),
        (STATES // 8, "not bits"),
        (STATES * 2, "twice"),
        (-STATES, "sign"),
        ("11.61 MiB", "prefix"),
    ],
)
def test_the_usual_mistakes_of_units_have_names(answer, name):
    verdict = check("12.2", answer)
    assert verdict.kind == "wrong" and name in verdict.text


def test_nothing_is_no_mistake_of_units():
    assert check("15.1", 0).text.endswith("It is too small.")


def test_factors_that_are_named_are_missed_by_name():
    e = _one(unit="GiB", factors={"batch": 8, "number of layers": 12})
    assert "The batch is missing" in e.judge(3 * 2**27).text
    assert "The number of layers is counted twice" in e.judge(36 * 2**30).text


def test_tolerances():
    assert _one(unit="GiB", decimals=1).judge("3.04 GiB").right
    assert not _one(unit="GiB", decimals=1).judge("3.06 GiB").right
    assert not _one(unit="GiB").judge(3 * 2**30 + 1).right
    loose = _one(unit="B", tolerance=512, reason="one block of the allocator")
    assert loose.judge(3 * 2**30 + 512).right and not loose.judge(3 * 2**30 + 513).right
    assert "one block of the allocator" in loose.wanted
    big = _one(answer=lambda: 3.3895e38, significant=3)
    assert big.judge("3.39e38").right and big.judge(3.39e38).right and not big.judge("3.4e38").right
    bits = _one(answer=lambda: Fraction(4127, 1000), unit="bit", decimals=2)
    assert bits.judge("4.13 bits").right and bits.judge("4.13 bit").right and not bits.judge("4.13 bytes").right


@pytest.mark.parametrize(
    "answer",
    [
        H * (L * (12 * H + 13) + V + N + 2),
        L * (12 * H**2 + 13 * H) + (V + N) * H + 2 * H,
        sp.expand(12 * L * H**2 * (1 + 13 / (12 * H)) + (V + N + 2) * H),
        eb.formula("parameters").for_model(eb.model("gpt2")),
        (sp.sqrt(H**2 * 4) + 13 * L * H + 12 * L * H * H + (V + N) * H).subs(H, sp.Symbol("H", positive=True)),
        12 * sp.Symbol("layers") * sp.Symbol("width") ** 2 + 13 * L * H + (V + N + 2) * H,
    ],
)
def test_equal_expressions_are_one_answer(answer):
    assert check("11.2", answer).right


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (12 * L * H**2 + 12 * L * H + (V + N + 2) * H, "term in H*L differs"),
        (12 * L * H**2 + (V + N + 2) * H, "term in H*L is missing"),
        (12 * L * H**2 + 13 * L * H + V * H + 2 * H, "position table is missing"),
        (2 * H * (L * (12 * H + 13) + V + N + 2), "times 2"),
        (
            sp.Symbol("B") * H * (L * (12 * H + 13) + V + N + 2),
            "factor B (sequences in a step, on one GPU) does not belong",
        ),
        (L * (12 * H + 13) + V + N + 2, "factor H (width of the residual stream) is missing"),
        (12 * L * H**2, "does not depend on N"),
        (124_439_808, "does not depend on H"),
        (11 * L * H**2 + 12 * L * H + (V + N + 2) * H, "Terms with another factor: 2."),
        (12 * L * H**3 + 13 * L * H + (V + N + 2) * H, "Terms missing: 1, not in the answer: 1."),
        (sp.Integer(0), "It is zero."),
    ],
)
def test_wrong_expressions_are_told_what_differs(answer, name):
    verdict = check("11.2", answer)
    assert verdict.kind == "wrong" and name in verdict.text


def test_an_expression_that_only_agrees_where_tried_is_not_accepted():
    right = exercise("11.2").right()
    h = next(s for s in right.free_symbols if str(s) == "H")
    sneaky = right + sp.floor(h / 10**6)
    assert expressions.equal(sneaky, right) is None
    assert not check("11.2", sneaky).right


@pytest.mark.parametrize("id", ["11.1", "11.2", "12.2"])
@pytest.mark.parametrize(
    "answer",
    [
        "<script>alert(1)</script>", "5 <script>", "__import__('os').system('true')", "9**9**9", "1e999", "1e9999999999", "9" * 10**6,
        "nan GiB", "inf", "12 parsecs", "GiB", "1 2 GiB", "-", "٣ GiB", float("nan"), float("inf"), 10**5000, -(10**5000), 1j, True,
        [1], {}, pytest.param(object(), id="object"), int, sp.oo, sp.nan, sp.zoo, sp.I, sp.true, sp.Matrix([1]), sp.Symbol("<b>x</b>"), sp.Function("f")(L),
        sp.Pow(9, sp.Pow(9, 9, evaluate=False), evaluate=False), sp.Pow(H, sp.Pow(H, sp.Pow(H, 10**9))), 1 / sp.Float(0),
        sp.Pow(L + H + V, 10**6), sp.Add(*(sp.Symbol(f"x{i}") for i in range(500))), 1 / sp.Add(H, -H, evaluate=False),
    ],
    ids=lambda a: ascii(a)[:24] if not isinstance(a, int) else "int",
)  # fmt: skip
def test_nothing_in_an_answer_raises_runs_or_is_rendered(id, answer):
    verdict = check(id, answer)
    assert verdict.kind in ("unreadable", "wrong")
    assert len(verdict.text) < 600
    assert "<script" not in verdict._repr_html_() and "<b>x" not in verdict._repr_html_()


@given(st.text(max_size=30))
def test_any_text_gets_a_verdict(text):
    assert check("12.2", text).kind in ("unreadable", "wrong", "open", "right")


@pytest.mark.parametrize("answer", [..., None, "", "  ", "..."])
def test_not_attempted(answer):
    assert "not attempted" in repr(check("12.2", answer))


def test_unknown_exercises_name_the_near_ones():
    with pytest.raises(ValueError, match="12.2"):
        check("12.22", 1)
    with pytest.raises(ValueError, match="allowed"):
        hint("77.1")
    with pytest.raises(ValueError, match="chapter"):
        exercises("77")


def test_hints_come_one_by_one(monkeypatch):
    monkeypatch.setitem(_HINTS_TAKEN, "12.2", 0)
    first, second = exercise("12.2").hints
    assert first in hint("12.2").text
    assert hint("12.2", 1).text == first and hint("12.2", 2).text == second
    assert hint("12.2").text == second
    assert "folded" in hint("12.2").text and "folded" in hint("12.2").text
    with pytest.raises(ValueError, match="number"):
        hint("12.2", 3)


def test_the_table_of_exercises():
    assert [row[0] for row in exercises("12").rows] == list(bank("12"))
    assert len(exercises().rows) == len(ALL)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "x.1"), ("id", "13"), ("difficulty", 4), ("minutes", 0), ("accepts", "text"), ("hints", ("one",)), ("tolerance", 5),
        ("reason", "because"),
    ],
)  # fmt: skip
def test_an_exercise_checks_its_fields(field, value):
    with pytest.raises(ValueError, match=f"Exercise.({field}|reason)"):
        _one(**{field: value})
    with pytest.raises(ValueError, match="more than one"):
        _one(decimals=1, significant=2)


def test_the_formats_of_chapter_12_are_those_of_torch():
    torch = pytest.importorskip("torch")
    assert exercise("20.1").right() == Fraction(torch.finfo(torch.float8_e5m2).max)
    assert exercise("20.4").right() == Fraction(torch.finfo(torch.float16).max) / Fraction(
        torch.amp.GradScaler("cpu").get_scale()
    )
    codes = torch.arange(2**15, dtype=torch.int16).view(torch.float16)
    e, m = sorted(exercise("20.2").right().free_symbols, key=str)
    assert exercise("20.2").right().subs({e: 5, m: 10}) == int(codes.isfinite().sum()) - 1


def test_an_expression_of_any_depth_is_judged():
    deep = sp.Symbol("L")
    for _ in range(3000):
        deep = sp.sin(deep, evaluate=False)
    found = next(e for c in chapters() for e in bank(c).values() if e.accepts == "expression")
    assert check(found.id, deep).kind == "unreadable"
