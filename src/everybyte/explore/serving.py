"""Chapter 44's explorer: what sequences take where a model generates, pass by pass, and the most that fit, context by context."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..answers.headroom import ROUNDING
from ..answers.serving import MOST, cache_bytes, largest, weight_bytes
from ..catalog import Gpu, Model, gpus
from ..catalog import model as catalog_model
from ..common import checks
from ..common.tables import Table
from ..theory import inference
from ..theory.letters import factor, text
from .beside import said
from .controls import Choice, Slider, opens, powers, steps, usable
from .courses import Printer, Steps
from .explorer import Explorer, told
from .peaks import Peak, labelled
from .pictures import DASHES, Stack
from .sizes import Size

MODELS: list[str] = said("serving")["models"]
CONTEXTS = powers(9, 17)
#: Tokens in a page.
PAGE = 16
#: The bars: moment -> (weights' and cache's data types, where they stand in pages; the part of the palette that its curve has).
MOMENTS: dict[str, tuple[Any, str]] = {
    label: (moment.get("types"), moment.get("look", "")) for label, moment in said("serving")["moments"].items()
}
_PASSES = ("prefill", "decode step")
#: A flag among the factors of a count.
_FLAG = re.compile(r"\bTrue\b")


class _Passes(Printer):
    """Puts a prefill and a decode step of each model into tables, each tensor rounded up as the allocator does; and pages."""

    def __init__(self, models):
        super().__init__()
        for kind, model in enumerate(models):
            for i in range(len(_PASSES)):
                values = inference.letters(model, 2, 1 if i else 64, 64 if i else 0)
                course = inference.course(model, values)
                self.batches[f"{kind},{i}"] = self.step(course.rest, course.items)
            for i, (types, _) in enumerate(MOMENTS.values()):
                if types:
                    self.batches[f"{kind},{i}"] = self._pages(*types)
        self.updates[""] = self.put([], [])

    def amount(self, piece):
        """The text of a piece's bytes, rounded up."""
        times = _FLAG.sub("1", text(piece.count))
        count = "" if times == "1" else f"*({times})"
        return f"{ROUNDING}*up(({factor(piece.numbers)})*{factor(piece.width)},{ROUNDING}){count}"

    def named(self, o):
        """An operation's name, place and owner."""
        return o.name, f"{o.phase}, at {o.name!r}", o.owner

    def _pages(self, weights, cache):
        """Weights and pages are all that stands: as one operation takes them."""
        pieces = ("parameters", self.size(f"Q_{weights}")), ("cache", self.size(f"B*up(C,{PAGE})*{PAGE}*k_{cache}"))
        return self.put([], [self.body([self.operation("pages", "", "", pieces, ())])])


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
        curves = [
            {"part": part, "label": label, "dash": dash}
            for (part, label), dash in zip(self.curves, DASHES, strict=True)
        ]
        more = {"contexts": list(self.contexts), "curves": curves, "ways": dict(self.ways), "unlimited": MOST}
        return super().spec() | more

    def most(self, values: Mapping, way: str, context: int | None = None) -> int:
        """The most sequences of a context whose moment fits; 0 where one does not."""
        values = {**values, **self.ways[way], "context": values["context"] if context is None else context}

        def size(number):
            return sum(self.highest({**values, **passed(values, number)})[1].values())

        return largest(size, values["capacity"]) if size(1) <= values["capacity"] else 0

    def describe(self, subject, values):
        where = self.highest(values)[0]
        bars = Stack.describe(self, subject, values) + (f" The largest moment is in {where}." if where else "")
        rows = ", ".join(f"{way} {self.most(values, way):,}" for way in self.ways)
        return f"{bars} Sequences of {values['context']:,} tokens that fit at most: {rows}."

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


@opens()
def serving(model: Model | None = None, gpu: Gpu | None = None, context: int = 8192, concurrency: int = 42) -> Explorer:
    """Chapter 44: what sequences take where a model generates, and the most that fit, as transformers generates and in pages.

    The bytes are `eb.serve`'s, prompts as long as they may be: all tokens of the context but the last. The model, by default
    Qwen2.5-7B on an 80 GB H100, has no window, and as many positions as the longest context.

    Args:
        context: tokens of a sequence, a power of two. concurrency: sequences at once.
    """
    start, card = model or catalog_model("qwen2.5-7b"), gpu.name if gpu else "h100-80gb"
    inference.check(start)
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
    ways = {label: {"moment": i, "decode": int(i == 1)} for i, label in enumerate(MOMENTS)}
    controls = [
        Choice("model", "model", models, start.name),
        Choice("gpu", "GPU", usable(cards), card),
        steps("tokens", "context (tokens)", CONTEXTS, context, "context"),
        Slider("concurrency", "sequences at once", 1, 512, concurrency),
        Choice("way", "moment", ways, "prefill"),
    ]
    derived = [(name, Size(words, source, {})) for words, (name, source) in said("serving")["values"].items()]
    courses = Steps(("kind", "moment"), (), _Passes(list(known.values())).tables(), {})
    curves = [(part, label) for label, (_, part) in MOMENTS.items() if part]
    parts = labelled(said("serving")["parts"])
    picture = Fitting(parts, bars="way", courses=courses, ways=ways, contexts=CONTEXTS, curves=curves)
    return told("serving", controls, picture, derived=derived)
