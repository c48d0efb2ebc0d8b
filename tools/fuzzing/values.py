"""Values: setups, models, arguments, keyed text, sizes, formulas, expressions, the allocator's configuration, devices."""

import dataclasses
import inspect
import json
import re
import tomllib
import typing
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from numbers import Real
from pathlib import Path
from types import UnionType

import hypothesis
import numpy
from hypothesis import strategies as st

import everybyte as eb
from everybyte import explore, formulas, units
from everybyte.allocator import Settings, settings
from everybyte.answers.alignment import Rollout
from everybyte.ask.choices import CHOICES, LIMITS
from everybyte.ask.mesh import Mesh
from everybyte.catalog.claims import read_claims
from everybyte.published.expressions import Reader
from everybyte.teach import check
from everybyte.theory.budget import peaks

from .drawn import JUNK, SMALL, STEP, Refused, cut, environment, junk_or, mostly, odd, printable, tags, whole

NOTHING_KEPT = eb.Headroom(driver=0, context=0, workspace=0, fragmentation=0, nccl=0, other=0)
FIELDS = {name: whole(*bounds) for name, bounds in LIMITS.items()} | {
    n: st.sampled_from(list(c)) for n, c in CHOICES.items()
}
SETUPS = st.dictionaries(
    st.sampled_from([*FIELDS, "dropout", "no_sync", "optimizer_in_backward", "adapters"]), st.just(None), max_size=3
).flatmap(
    lambda names: st.fixed_dictionaries(
        {name: junk_or(FIELDS.get(name, st.sampled_from([0.1, True, {"rank": 4}])), 12) for name in names}
    )
)
_DIMENSIONS = {
    "layers": st.sampled_from([1, 2, 3, 4, 6, 8, 12, 64, 2**24]), "heads": st.integers(1, 4), "kv_heads": st.integers(1, 4),
    "width": st.sampled_from([12, 24, 48, 10, 2**24]), "vocabulary": st.integers(1, 300), "tied": st.booleans(), "gated": st.booleans(),
    "norm": st.sampled_from(["layernorm", "rmsnorm"]),
}  # fmt: skip
_DIMENSIONS |= dict.fromkeys(("ffn_width", "positions"), _DIMENSIONS["layers"])
_OPTIONAL = ("kv_heads", "ffn_width", "tied", "gated", "norm")
MODELS = st.fixed_dictionaries(
    {name: junk_or(_DIMENSIONS[name], 40) for name in ("layers", "width", "heads", "vocabulary", "positions")},
    optional={name: junk_or(_DIMENSIONS[name], 20) for name in _OPTIONAL},
)


def setup(draw):
    """A setup says all of itself in JSON, and is read back from it."""
    made = eb.Setup(**draw(SETUPS))
    assert eb.Setup(**json.loads(json.dumps(made.as_dict()))) == made == made.replace()


def model(draw):
    """A model's parameters are those of PyTorch's modules, where a reference builds it, and those of the formula."""
    made = eb.Model(name="drawn", **draw(MODELS))
    assert made.parameters > 0
    if not made.unlike_reference():
        if made.family == "gpt":
            assert formulas.formula("parameters").at(made) == made.parameters
        if made.layers * made.width * made.ffn_width < 10**6:
            import torch

            from everybyte.reference import FAMILIES

            with torch.device("meta"):
                module = FAMILIES[made.family](made, eb.Setup(batch=1, sequence=1, attention="eager"))
            assert sum(p.numel() for p in module.parameters()) == made.parameters


#: What is called with values of any kind, what its arguments are else, and of which models and setups explorers are made.
_SHOWN = (explore.states, explore.step, explore.block, explore.loss, explore.zero, explore.serving)
CALLS = (
    eb.budget, eb.fit, eb.plan, eb.serve, eb.align, eb.layouts, eb.doctor, eb.dry_run, eb.dry_serve, eb.snapshot, eb.gpu, eb.model,
    eb.formula, eb.settle, eb.Setup, eb.Model, eb.Mesh, eb.Lora, Rollout, eb.Gpu, eb.Headroom, units.parse, *_SHOWN,
)  # fmt: skip
_GIVEN = {
    "model": SMALL, "setup": STEP, "gpu": "h200", "method": "dpo", "context": 32, "sequences": 4, "evidence": "MemoryError", "batch": 1,
    "prompt": 2, "source": b"", "claim": None, "layers": 2, "width": 48, "heads": 3, "vocabulary": 101, "memory": "8 GiB", "count": 5,
    "value": "1 GiB", "unit": "GiB", "headroom": NOTHING_KEPT,
}  # fmt: skip


def call(draw):
    """An argument of a kind that the signature does not have is refused by name."""
    function = draw(st.sampled_from(CALLS))
    parameters, hints = inspect.signature(function).parameters, typing.get_type_hints(function)
    given = {
        n: _GIVEN.get(n, "x") for n, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD
    }
    names = [n for n, p in parameters.items() if n not in ("witness", "progress") and p.kind is not p.VAR_KEYWORD]
    changed = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    for name in changed:
        choices = _choices(hints.get(name)) or CHOICES.get(name) or ("x", 1, 2.5)
        given[name] = draw(odd(choices))
        hypothesis.assume(not (isinstance(given[name], int) and abs(given[name]) > 64 and name in ("steps", "most")))
    if function is eb.dry_run and isinstance(given.get("model"), eb.Model):
        given.setdefault("rounding", 1)
    found = function(**given)
    for name in changed:
        value, usual = given[name], parameters[name].default
        assert _is(value, hints.get(name, typing.Any)) or value is usual, (
            f"{name}: a {type(value).__name__} was taken, and is no {hints[name]}"
        )
    printable(repr(found))


_UNIONS = (typing.Union, UnionType)


def _choices(hint):
    """The words that a type allows."""
    if typing.get_origin(hint) is typing.Literal:
        return [v for v in typing.get_args(hint) if isinstance(v, str)]
    return [v for part in typing.get_args(hint) for v in _choices(part)] if typing.get_origin(hint) in _UNIONS else []


def _is(value, hint):
    """Whether a value is of a parameter's type, as far as the type says so."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is typing.Any or isinstance(hint, str) or hint is object:
        return True
    if origin is typing.Literal:
        return (
            type(value) in (str, bool, int) and value in arguments or isinstance(value, str) and str(value) in arguments
        )
    if origin in _UNIONS:
        return any(_is(value, arg) for arg in arguments)
    if hint in (int, float, bool):
        numbers = {int: int, float: Real, bool: bool}[hint]
        return isinstance(value, numbers) and (hint is bool or not isinstance(value, bool))
    kind = list | tuple if origin is tuple else origin or hint
    return callable(value) if kind is Callable else isinstance(value, kind)


_DIGITS = st.integers(1, 64).map(str) | st.sampled_from(
    ["²", "٣", "1_0", "+1", "１", "0x1", "1e2", "1.0", ".5", "-0", "007", "⅔", "Ⅷ", "9" * 400, "true", "False", "none"]
)
_WORD = st.text(max_size=4).filter(lambda t: not re.search(r"[\s;]", t))
_TRUTH = ["true", "false", "False"]


def _keyed(kind):
    """Field of a class -> texts that it takes, by its type: words, or what is true or false."""
    hints = {name: _choices(hint) or _TRUTH * (hint is bool) for name, hint in typing.get_type_hints(kind).items()}
    return {name: texts for name, texts in hints.items() if texts}


KEYED = {kind: _keyed(kind) for kind in (eb.Lora, Mesh, Rollout)}
KEYED[eb.Lora] |= {"targets": ["q,v", "all-linear", "q,q", ","], "dropout": ["0.05"]}
KEYED[Mesh] |= {"routing": ["1.5"]}
KEYED[Rollout] |= {"asleep": ["true", "false"]}


def keyed(draw):
    """What is read of a text of names and values is what it says: each once, numbers as they are written."""
    kind = draw(st.sampled_from(list(KEYED)))
    names = [f.name for f in dataclasses.fields(kind)]
    pairs = [("sequences", "4"), ("context", "32")] if kind is Rollout and draw(st.booleans()) else []
    for name in draw(
        st.lists(
            junk_or(st.sampled_from(names), 30).filter(lambda n: isinstance(n, str) and not re.search(r"[\s;=]", n)),
            max_size=3,
        )
    ):
        own = st.sampled_from(KEYED[kind][name]) if name in KEYED[kind] else _DIGITS
        pairs.append((name, draw(mostly(own, _DIGITS | _WORD, 4))))
    made = kind.read(draw(st.sampled_from([" ", "; ", "  "])).join(f"{name}={text}" for name, text in pairs))
    assert len(dict(pairs)) == len(pairs), f"one of two values won: {pairs} -> {made}"
    for name, text in pairs:
        assert _says(getattr(made, name), text), f"{name}={text} became {getattr(made, name)!r}"
    if kind is not Rollout:
        assert made == Mesh() if str(made) == "none" else kind.read(str(made)) == made


def _says(value, text):
    if isinstance(value, tuple):
        return set(value) == set(text.split(","))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).lower() == text.lower()
    return Fraction(value) == (Fraction(text) if isinstance(value, int) else Fraction(float(text)))


def card(draw):
    """A GPU of any size: its bytes are those that Fractions say, and what fits it fits, and the next does not."""
    number, unit = draw(st.decimals(0, 10**6, places=2)), draw(st.sampled_from([*units.UNITS, "GIB", ""]))
    gpu = eb.Gpu(memory=draw(junk_or(st.just(f"{number} {unit}"), 4)))
    if unit in units.UNITS and "." in str(number) and gpu.memory != 0:
        exact = Fraction(str(number)) * units.UNITS[unit]
        assert gpu.memory in (exact, round(exact), int(exact)) or not isinstance(gpu.memory, int) or exact != gpu.memory
    made = eb.Model(name="drawn", layers=2, width=64, heads=2, vocabulary=100, positions=64, learned_positions=64)
    found = eb.fit(made, eb.Setup(batch=1, sequence=draw(st.integers(1, 64))), gpu, headroom=NOTHING_KEPT)
    if found.value:
        usable = NOTHING_KEPT.usable(gpu)
        assert eb.budget(made, found.setup.replace(batch=found.value), 512).peak <= usable


def size(draw):
    """Text of bytes is within half its last digit, in a unit that keeps it below 1,024, and is read back so."""
    edges = st.builds(lambda u, n: units.UNITS[u] + n, st.sampled_from(list(units.UNITS)), st.integers(-1, 1))
    count, digits = draw(junk_or(st.integers(0, 2**80) | st.floats(0, 1e20) | edges)), draw(st.integers(0, 4))
    if isinstance(count, bool) or not isinstance(count, int | float):
        said = units.parse(count)
        assert said == said
        return
    said = units.text(count, digits=digits)
    number, unit = said.split()
    within = Fraction(501, 1000) * units.UNITS[unit] / 10**digits
    assert abs(Fraction(number) * units.UNITS[unit] - Fraction(count)) <= within or count < 0
    assert abs(float(number)) < 1024 or unit == "EiB"
    assert units.parse(said) == float(number) * units.UNITS[unit]


def formula(draw):
    """A formula over arrays is the formula of each number, whatever its size."""
    known = ["flops.block", "attention.scores", "parameters", "zero.states", "checkpoint.inputs"]
    found = formulas.formula(draw(junk_or(st.sampled_from(known), 20)))
    points = [{e.name: draw(junk_or(st.integers(1, 2**40), 40)) for e in found.symbols} for _ in range(3)]
    hypothesis.assume(not any(isinstance(v, float | bool) for point in points for v in point.values()))
    arrays = found.arrays(**{e.name: [point[e.name] for point in points] for e in found.symbols})
    assert list(numpy.broadcast_to(arrays, 3)) == [found(**point) for point in points]


def wrap(draw):
    """Peaks over arrays are those of each step, whether they pass 64 bits or not."""
    made = eb.Model(
        name="wide", layers=draw(st.integers(1, 96)), width=12288, heads=96, vocabulary=50_257, positions=2**17
    )
    batch, sequence = 2 ** draw(st.integers(0, 24)) - draw(st.integers(0, 1)), 2 ** draw(st.integers(0, 17))
    said = eb.Setup(batch=max(batch, 1), sequence=sequence, attention=draw(st.sampled_from(["flash", "eager"])))
    found = peaks(made, said, numpy.array([said.batch]), numpy.array([said.sequence]))
    assert int(found[0][0]) == eb.budget(made, said).peak


_NUMBERS = st.integers(0, 99).map(str) | st.sampled_from(["0.5", "1e3", "9", "2**40", "(-1)"])
_SUMS = st.recursive(
    _NUMBERS, lambda s: st.tuples(s, st.sampled_from(["+", "-", "*", "/", "**"]), s).map(lambda t: f"({''.join(t)})"), max_leaves=8
)  # fmt: skip
_PIECES = """9 99 1e999 0.5 nan inf 0x10 1_000 + - * / ** ** % // ( ) [ ] { } , ; : . = == ' " \\ _ if else for in is not and or lambda x await
    yield min max round abs sum pow int str print __import__ os system open eval exec ().__class__ f'{1}' True None \ud800 \x00 \x1b""".split()
#: What would run, never end, mean nothing, or be too deep.
EXPRESSIONS = st.one_of(
    st.lists(st.sampled_from(_PIECES), max_size=8).map("".join), st.lists(st.sampled_from(_PIECES), max_size=8).map(" ".join),
    st.integers(1, 20_000).map(lambda n: "(" * n + "1" + ")" * n), st.integers(1, 20_000).map(lambda n: "1" + "+1" * n),
    st.integers(1, 9000).map(lambda n: "9" * n), st.integers(2, 9).map(lambda n: "**".join("9" * n)), st.integers(1, 3000).map(lambda n: "-" * n + "1"),
    st.builds("{}({})".format, st.sampled_from(["min", "max", "round", "open", "__import__"]), _SUMS),
)  # fmt: skip


@cache
def _claim():
    return next(c for c in eb.claims().values() if c.value and not c.given and not c.runs and c.unit not in units.UNITS)


def claim(draw):
    """An expression of a claim is what Fractions make of it; what would run, or never end, is refused."""

    def read(text):
        return Reader(dataclasses.replace(_claim(), value=text)).read("value")

    if draw(st.integers(1, 3)) == 1:
        read(draw(EXPRESSIONS))
        return
    text = draw(_SUMS)
    exact = re.sub(r"\d+(\.\d+)?(e\d+)?", lambda m: f"Fraction('{m[0]}')", text)
    assert read(text) == eval(exact, {"Fraction": Fraction})  # noqa: S307 this file's own digits and signs


def claims_file(draw):
    """A file of claims with bytes changed is read as it was, or names the claim."""
    text = (Path(eb.__file__).parent / "catalog" / "claims.toml").read_text(encoding="utf-8")
    text = text[: text.index("\n[", 6000)]
    for _ in range(draw(st.integers(0, 2))):
        text = cut(draw, text, st.sampled_from(["", '"', "=", "\n", "]", "x", "9", "-", "[" * 2000, "a." * 2000]))
    try:
        said = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Refused("no TOML") from error
    found = read_claims(text)
    assert list(found) == list(said) and all(found[id].claim == said[id]["claim"] for id in found)


def answer(draw):
    """Nothing in an answer to an exercise raises, nothing of it is shown as a tag."""
    with environment("EVERYBYTE_PROGRESS", "/dev/null"):
        said = check(
            draw(st.sampled_from(["12.1", "11.1", "21.1"])), draw(st.one_of(EXPRESSIONS, odd(), st.just("<b>x</b>")))
        )
    assert said.text
    tags(said._repr_html_())


def configuration(draw):
    """The allocator's configuration: what is said of each field is what stands in the text."""
    known = {
        "max_split_size_mb": st.integers(18, 5000), "expandable_segments": st.booleans(), "garbage_collection_threshold": st.floats(0.01, 0.99),
        "roundup_power2_divisions": st.sampled_from([1, 2, 4, 8]), "per_process_memory_fraction": st.floats(0.01, 1), "backend": st.just("native"), "x": st.just(1),
    }  # fmt: skip
    strange = (
        st.integers(-2, 5000).map(str)
        | st.sampled_from(["True", "0.5", "[256:1]", "", ":", ",", "²"])
        | st.text(max_size=4)
    )
    names = st.lists(st.sampled_from([n for n in known for _ in range(1 if n == "x" else 4)]), max_size=3, unique=True)
    pairs = [(name, draw(strange if draw(st.integers(1, 6)) == 1 else known[name].map(str))) for name in draw(names)]
    found = settings(",".join(f"{name}:{value}" for name, value in pairs))
    assert isinstance(found, Settings)
    last = dict(pairs)
    if "max_split_size_mb" in last and len(pairs) == 1:
        assert found.max_split_size == int(last["max_split_size_mb"]) * 2**20


def device(draw):
    """The name of a device that this machine has not is refused: none becomes the first GPU."""
    from everybyte.lab.run import find

    kinds = st.sampled_from(["cpu", "cuda", "CUDA", "mps", "xpu", "meta", "", "cpu "])
    name = draw(st.one_of(kinds, st.builds("{}:{}".format, kinds, st.integers(-3, 2**40)), st.text(max_size=6), JUNK))
    hypothesis.assume(name)
    assert find(name).type == name.partition(":")[0]


SUBJECTS = {
    setup: 1200, model: 800, call: 2000, keyed: 1200, card: 400, size: 800, formula: 300, wrap: 200, claim: 900, claims_file: 300,
    answer: 400, configuration: 600, device: 200,
}  # fmt: skip
