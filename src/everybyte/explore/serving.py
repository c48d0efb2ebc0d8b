"""Chapter 44's explorer: what sequences take where a model generates, pass by pass, and the most that fit, context by context."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace

from .. import checks, draw
from ..catalog import Gpu, Model, gpus
from ..catalog import model as catalog_model
from ..headroom import ROUNDING, Headroom
from ..serving import MOST, cache_bytes, largest, weight_bytes
from ..tables import Table
from ..theory import inference
from ..theory.letters import factor, text
from .controls import Choice, Slider, opens
from .courses import Courses, Size, _Printer
from .explorer import Explorer
from .precision import Peak

MODELS = ("llama-3.2-1b", "llama-3.1-8b", "llama-3.1-70b", "qwen2.5-7b", "qwen2.5-32b", "deepseek-v3")
PARTS = ("parameters", "buffers", "cache", "activations")
CONTEXTS = [2**i for i in range(9, 18)]
#: Tokens in a page.
PAGE = 16
#: The bars: moment -> (weights' and cache's data types, where they stand in pages; the part of the palette that its curve has).
MOMENTS: dict[str, tuple[tuple[str, str] | None, str]] = {
    "prefill": (None, "activations"),
    "decode step": (None, "cache"),
    "pages": (("bf16", "bf16"), "requested"),
    "fp8 pages": (("bf16", "fp8"), ""),
    "fp8 pages + int8 weights": (("int8", "fp8"), ""),
    "fp8 pages + nf4 weights": (("nf4", "fp8"), "parameters"),
}
_PASSES = ("prefill", "decode step")
#: A flag among the factors of a count.
_FLAG = re.compile(r"\bTrue\b")
_LETTER, _CALL = re.compile(r"\b[A-Za-z]\w*\b(?!\()"), re.compile(r"\b[a-z]+\(")


@dataclass(frozen=True)
class Sized(Size):
    """A size whose letters are themselves the names of the values."""

    @cached_property
    def symbols(self):
        """The letters that it uses."""
        return [SimpleNamespace(name=letter) for letter in dict.fromkeys(_LETTER.findall(self.text))]

    @cached_property
    def javascript(self):
        """As `Size.javascript`."""
        return "(v) => " + _CALL.sub(
            lambda call: f"helpers.{call[0]}", _LETTER.sub(lambda found: f"v.{found[0]}", self.text)
        )

    @cached_property
    def _code(self):
        return compile(self.text, self.name, "eval")


class _Passes(_Printer):
    """Puts a prefill and a decode step of each model into tables, each tensor rounded up as the allocator does; and pages."""

    def __init__(self, models):
        super().__init__({}, {})
        for kind, model in enumerate(models):
            for i in range(len(_PASSES)):
                values = inference.letters(model, 2, 1 if i else 64, 64 if i else 0)
                course = inference.course(model, values)
                self.batches[f"{kind},{i}"] = self._step(course.rest, course.items)
            for i, (types, _) in enumerate(MOMENTS.values()):
                if types:
                    self.batches[f"{kind},{i}"] = self._pages(*types)
        self.updates[""] = self._step([], [])

    def _pieces(self, pieces):
        found = []
        for piece in pieces:
            times = _FLAG.sub("1", text(piece.count))
            count = "" if times == "1" else f"*({times})"
            size = f"{ROUNDING}*up(({factor(piece.numbers)})*{factor(piece.width)},{ROUNDING}){count}"
            found.append([piece.part, self._size(size)])
        return found

    def _operation(self, o):
        printed = (
            o.name,
            f"{o.phase}, at {o.name!r}",
            o.owner,
            _pairs(self._pieces(o.taken)),
            _pairs(self._pieces(o.freed)),
        )
        return self._operations.setdefault(printed, len(self._operations))

    def _pages(self, weights, cache):
        """Weights and pages are all that stands: as one operation takes them."""
        pieces = ("parameters", self._size(f"Q_{weights}")), ("cache", self._size(f"B*up(C,{PAGE})*{PAGE}*k_{cache}"))
        operation = self._operations.setdefault(("pages", "", "", pieces, ()), len(self._operations))
        body = self._bodies.setdefault(((operation,), (0, None), (0, None)), len(self._bodies))
        printed = f'{{"rest": [], "items": [{body}]}}'
        return self._steps.setdefault(printed, len(self._steps))


def _pairs(pairs):
    return tuple(map(tuple, pairs))


class Served(Courses):
    """The passes of some models, and the pages of any: a course for each model and each of `MOMENTS`."""

    def __init__(self, models: Sequence[Model]):
        self.name, self.by, self.update_by = "serving", ("kind", "moment"), ()
        self._tables = found = _Passes(models).tables()
        self.sizes = [Sized(f"size {i}", source) for i, source in enumerate(found["sizes"])]
        self.operations, self.bodies, self.steps = found["operations"], found["bodies"], found["steps"]
        self.batches, self.updates = found["batches"], found["updates"]


def _values(model):
    """The values that a model gives its passes."""
    found = inference.letters(model, 1, 1)
    for letter in ("B", "S", "T", "T_0"):
        del found[letter]
    for types in (types for types, _ in MOMENTS.values() if types):
        found[f"Q_{types[0]}"] = weight_bytes(model, types[0])
        found[f"k_{types[1]}"] = cache_bytes(model, 1, types[1])
    return found


@dataclass(frozen=True)
class Fitting(Peak):
    """A bar for each moment against a GPU's memory; below, for each context the most sequences whose moment fits.

    Attributes:
        ways: moment -> the values that choose it. contexts: where the curves are evaluated. curves: (part of the palette, moment).
    """

    ways: Mapping[str, Mapping] = field(default_factory=dict)
    contexts: Sequence[int] = ()
    curves: Sequence[tuple] = ()

    kind = "fitting"
    names = ("kind", "moment", "B", "C", "S", "T", "T_0", "decode")

    def spec(self):
        """What the picture needs to know."""
        dashes = ("", "8 5", "2 4", "10 4 2 4")
        curves = [
            {"part": part, "label": label, "dash": dash}
            for (part, label), dash in zip(self.curves, dashes, strict=True)
        ]
        return super().spec() | {
            "contexts": list(self.contexts),
            "curves": curves,
            "ways": dict(self.ways),
            "unlimited": MOST,
        }

    def most(self, values: Mapping, way: str, context: int | None = None) -> int:
        """The most sequences of a context whose moment fits; 0 where one does not."""
        values = {**values, **self.ways[way], "context": values["context"] if context is None else context}

        def size(number):
            return sum(self.highest({**values, **passed(values, number)})[1].values())

        return largest(size, values["capacity"]) if size(1) <= values["capacity"] else 0

    def describe(self, subject, values):
        """The sentence for a state, as picture.js says it."""
        where = self.highest(values)[0]
        said = super(Peak, self).describe(subject, values) + (f" The largest moment is in {where}." if where else "")
        rows = ", ".join(f"{way} {self.most(values, way):,}" for way in self.ways)
        return f"{said} Sequences of {values['context']:,} tokens that fit at most: {rows}."

    def figure(self, title, subject, values, variants):
        """matplotlib's figure of the bars, with the most that fit beside each name; `table` has the curves."""
        named = dict(zip(variants, self.ways, strict=True))
        rows = {f"{label}: at most {self.most(values, named[label]):,}": row for label, row in variants.items()}
        return super().figure(title, subject, values, rows)

    def table(self, subject, values):
        """A `Table` of the most sequences that fit, context by context."""
        rows = [(way, *(f"{self.most(values, way, context):,}" for context in self.contexts[::2])) for way in self.ways]
        return Table(("at most", *(f"{context:,} tokens" for context in self.contexts[::2])), rows, subject)


def passed(values: Mapping, number: int) -> dict:
    """The letters of a moment: so many sequences, new tokens and older ones of each."""
    decode, context = values["decode"], values["context"]
    return {
        "B": number, "C": context, "S": 1 if decode else context - 1, "T": context - 1 + decode, "T_0": (context - 1) * decode,
    }  # fmt: skip


@opens
def serving(model: Model | None = None, gpu: Gpu | None = None, context: int = 8192, concurrency: int = 42) -> Explorer:
    """What sequences take where a model generates, and the most that fit: as transformers generates, and in pages.

    The bytes are `eb.serve`'s, prompts as long as they may be: all tokens of the context but the last.

    Args:
        model, gpu: what it opens with, a model of your own too; by default Qwen2.5-7B on an 80 GB H100. context: tokens of a
            sequence, a power of two. concurrency: sequences at once.

    Raises:
        ValueError: a model whose passes are not derived, that has a window, or fewer positions than the longest context; a context
            that is none of `CONTEXTS`, a concurrency beyond the slider, a GPU that is not in the catalog.
    """
    start, card = model or catalog_model("qwen2.5-7b"), gpu.name if gpu else "h100-80gb"
    inference.program(start)
    if start.window:
        raise ValueError(f"serving.model.window: {start.window:,} of {start.name}; allowed: 0, or ask eb.serve")
    if start.positions and start.positions < CONTEXTS[-1]:
        raise ValueError(
            f"serving.model.positions: {start.positions:,} of {start.name}; allowed: {CONTEXTS[-1]:,} or more, or ask eb.serve"
        )
    cards = {name: g for name, g in gpus().items() if g.bf16}  # in which weights and cache are
    checks.one_of("serving", "gpu", card, cards)
    if type(context) is not int or context not in CONTEXTS:
        raise ValueError(
            f"serving.context: {checks.shown(context)} is unknown; allowed: {', '.join(map(str, CONTEXTS))}"
        )
    known = {name: catalog_model(name) for name in MODELS} | {start.name: start}
    models = {name: _values(m) | {"kind": kind} for kind, (name, m) in enumerate(known.items())}
    room = {name: {"capacity": Headroom().usable(g), "capacity_label": f"{name}, usable"} for name, g in cards.items()}
    ways = {label: {"moment": i, "decode": int(i == 1)} for i, label in enumerate(MOMENTS)}
    controls = [
        Choice("model", "model", models, start.name),
        Choice("gpu", "GPU", room, card),
        Choice("tokens", "context (tokens)", {f"{n:,}": {"context": n} for n in CONTEXTS}, f"{context:,}", kind="slider"),
        Slider("concurrency", "sequences at once", 1, 512, concurrency),
        Choice("way", "moment", ways, "prefill"),
    ]  # fmt: skip
    usual = {"model": "qwen2.5-7b", "gpu": "h100-80gb", "tokens": "8,192", "concurrency": 42, "way": "prefill"}
    presets = {
        "the prefill is full": usual,
        "the same in pages": usual | {"way": "pages", "concurrency": 147},
        "a card of 24 GB": usual | {"gpu": "rtx-4090", "way": "fp8 pages + nf4 weights", "concurrency": 64},
        "128 thousand tokens": usual | {"gpu": "h200", "tokens": "131,072", "concurrency": 4, "way": "decode step"},
        "Llama 3.1 70B, 16 bits": usual | {"model": "llama-3.1-70b", "gpu": "h200", "way": "pages", "concurrency": 1},
    }
    derived = [
        ("C", Sized("tokens at the end", "context")),
        ("B", Sized("sequences", "concurrency")),
        ("S", Sized("new tokens", "(context-1)*(1-decode)+decode")),
        ("T", Sized("tokens", "context-1+decode")),
        ("T_0", Sized("older tokens", "(context-1)*decode")),
    ]
    parts = [(part, draw.part(part).label, part) for part in PARTS]
    curves = [(part, label) for label, (_, part) in MOMENTS.items() if part]
    picture = Fitting(
        parts, bars="way", courses=Served(list(known.values())), ways=ways, contexts=CONTEXTS, curves=curves
    )
    return Explorer(
        "What a GPU serves", controls, picture, presets, derived=derived, subject=("model", "way"), also=("concurrency", "context"),
    )  # fmt: skip
