"""Chapter 45's explorer: what each switch leaves of the peak of one step, against what a GPU has usable."""

from functools import cache, partial

from sympy import Add, Integer, Min, Mul, ceiling, sympify

from .. import checks, draw
from ..catalog import Gpu, Model, gpus
from ..fit import Headroom
from ..formulas import Formula, bindings
from ..formulas.ledger import Ledger, exact
from ..formulas.states import BUFFERS, GRADIENT_BUFFER, OPTIMIZER, WEIGHTS
from ..formulas.symbols import SYMBOLS, B, L, accumulated, foreach
from ..formulas.walking import LATER, MARKS, Shape
from ..setup import Setup
from .controls import Choice, precision_label, shared
from .explorer import Explorer
from .precision import Peak

PARTS = ("parameters", "casts", "buffers", "gradients", "optimizer", "activations", "loss")
CHUNKS = 8
#: The operations at which a step can peak, within what controls and switches reach: plain, checkpointed, with the loss in chunks.
_LOSS = ("negative log-likelihood backward", "log-softmax backward")
_ENDS = ("token gradient", "token gradients added", "fp32 gradients", "root of the variance")
TOPS = {
    "plain": {*_LOSS, *_ENDS, "head input gradient", "head weight gradient cast", "down bias gradient"},
    "checkpointed": {*_LOSS, *_ENDS, "loss", "softmax backward", "weights gradient cast"},
    "chunked": {
        *(f"chunk's {name}" for name in _LOSS), *_ENDS, "chunk's head weight gradients added", "chunk's head input gradient",
        "softmax backward", "weights gradient cast",
    },
}  # fmt: skip
#: What is the same in every GPT-2, and what no control turns.
SAME = {
    "tied": 1, "qkv_bias": 1, "out_bias": 1, "ffn_bias": 1, "norm_bias": 1, "final_norm": 1, "narrow": 0, "gated": 0, "fused": 1,
    "dropout": 0, "selective": 0, "segment": 1, "adam": 1, "states": 2, "loop": 0,
}  # fmt: skip
_N = SYMBOLS["accumulation"].symbol
_ASKED = {"foreach": 1, "accumulation": 1, "accumulated": 0, "segmented": 0, "chunked": 0, "loss_chunks": 1}
_KINDS = (0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0), (0, 0, 1)
_FUSED, _FULL = {"foreach": 0}, {"segmented": 1}
_TWO, _EACH = {"accumulation": 2, "accumulated": 1}, {"accumulation": 2**10, "accumulated": 1}
#: The bars: sets of switches, the symbols' values that each has beside the chosen ones.
SWITCHES = {
    "as chosen": {},
    "fused optimizer": _FUSED,
    "two half batches": _TWO,
    "one sequence at a time": _EACH,
    f"loss in {CHUNKS} chunks": {"chunked": 1, "loss_chunks": CHUNKS},
    "full checkpointing": _FULL,
    "the same, fused": _FULL | _FUSED,
    "the same, one at a time": _FULL | _FUSED | _EACH,
}


def _times(shape):
    """[(section, whether to look, how often)] of a step, with the number of blocks as a letter."""
    few, more = (list(shape(layers).plan(whole=False)) for layers in (100, 101))
    return [(name, seen, a + (b - a) * (L - 100)) for (name, seen, a), (_, _, b) in zip(few, more, strict=True)]


def _amounts(kind, put):
    """(moment, {part: bytes}) at each of `TOPS` in one kind of step, with the values of `put` for letters."""
    chunked, segments, several = kind["chunked"], kind["segmented"], kind["accumulated"]
    of = {"chunked": bool(chunked), "checkpointing": "segments" if segments else "none"}
    tops = TOPS["chunked" if chunked else "checkpointed" if segments else "plain"]
    shape = partial(Shape, chunks=CHUNKS if chunked else None, segment=segments, accumulation=1 + several)
    ledger = Ledger(exact, **of, accumulation="first" if several else "only").amounts()
    if several:
        later = Ledger(exact, **of, accumulation="later").amounts()
        ledger |= {LATER + name: lines for name, lines in later.items()} | {"optimizer": later["optimizer"]}
    states = {"parameters": WEIGHTS, "buffers": BUFFERS, "optimizer": OPTIMIZER, "gradients": GRADIENT_BUFFER}
    live = {part: [f.expr.xreplace(put)] for part, f in states.items()}  # terms, added up where somebody looks

    @cache
    def bytes_of(size):
        if size.is_Mul and any(put.get(factor) == 0 for factor in size.args):
            return Integer(0)  # before what it multiplies is worked out
        return size.xreplace(put)

    for section, seen, times in _times(shape):
        if section.removeprefix(LATER) in MARKS:
            continue
        for moment, name, taken, gone in ledger[section]:
            for part, size in taken:
                live.setdefault(part, []).append(times * bytes_of(sympify(size)))
            if seen and name in tops:
                live = {part: [Add(*terms)] for part, terms in live.items()}
                yield moment, {part: total for part, (total,) in live.items()}
            for part, size in gone:
                live.setdefault(part, []).append(-(times * bytes_of(sympify(size))))


def instants(kinds):
    """Where steps of several kinds can peak; the amounts of all but the kind at hand are nothing.

    Args:
        kinds: (checkpointed, accumulated, loss chunked) of each, 0 or 1.
    """
    return [instant for kind in kinds for instant in _instants(*kind)]


@cache
def _instants(segments, several, chunks):
    """Where steps of one kind can peak, equal amounts shared."""
    formulas, found = {}, []

    def amount(expr):
        name = f"amount {segments}{several}{chunks}.{len(formulas)}"
        return formulas.setdefault(expr, Formula(name, "", expr, "B", "the ledger", ""))

    kind = {"segmented": segments, "accumulated": several, "chunked": chunks}
    own = Mul(*(SYMBOLS[name].symbol if there else 1 - SYMBOLS[name].symbol for name, there in kind.items()))
    put = {SYMBOLS[name].symbol: Integer(value) for name, value in (SAME | kind | {"loss_chunks": CHUNKS}).items()}
    for moment, parts in _amounts(kind, put):
        found.append((moment, {p: amount(own * x) for p, x in parts.items() if x != 0}))
    return found


def planning(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """The peak of a GPT's step in exact tensor bytes, a bar for each set of switches, against what a GPU has usable.

    Args:
        model, setup, gpu: what it opens with; by default GPT-2 XL on a 40 GB A100. AdamW, the plain loss.

    Raises:
        ValueError: a model that is not one of GPT-2's four sizes, a batch or a sequence that is none of
            those offered, a GPU that is not in the catalog.
    """
    from ..catalog import models

    known = {name: m for name, m in models().items() if not m.unlike_gpt() and m.qkv_bias}
    start, chosen = model or known["gpt2-xl"], setup or Setup(precision="bf16-mixed")
    card = gpu.name if gpu else "a100-40gb"
    checks.one_of("planning", "model", start.name, known)
    checks.one_of("planning", "gpu", card, gpus())
    room = {name: {"capacity": Headroom().usable(g), "capacity_label": f"{name}, usable"} for name, g in gpus().items()}
    controls = [
        Choice("model", "model", {name: bindings(m, None) for name, m in known.items()}, start.name),
        Choice("gpu", "GPU", room, card),
        shared("precision", precision_label(chosen)),
        Choice("attention", "attention", {"flash": {"eager": 0}, "eager": {"eager": 1}}, chosen.attention),
        Choice("batch", "batch (sequences)", {f"{2**i:,}": {"batch": 2**i} for i in range(9)}, f"{chosen.batch:,}", "slider"),
        Choice("sequence", "sequence (tokens)", {f"{2**i:,}": {"sequence": 2**i} for i in range(7, 11)},
               f"{chosen.sequence:,}", "slider"),
        Choice("switches", "switches", {label: _ASKED | more for label, more in SWITCHES.items()}, "as chosen"),
    ]  # fmt: skip
    plain = {"model": "gpt2-xl", "gpu": "a100-40gb", "precision": "bf16-mixed", "attention": "flash", "batch": "8",
             "sequence": "1,024", "switches": "as chosen"}  # fmt: skip
    presets = {
        "XL on 24 GB": plain | {"gpu": "rtx-3090", "batch": "1"},
        "XL on 24 GB, all bf16": plain | {"gpu": "rtx-3090", "precision": "bf16", "switches": "fused optimizer"},
        "124M, batch 64": plain | {"model": "gpt2", "gpu": "rtx-4090", "batch": "64", "switches": "full checkpointing"},
        "eager, fp32, 80 GB": plain | {"gpu": "h100-80gb", "precision": "fp32", "attention": "eager"},
    }
    parts = [(part, draw.part(part).label, part) for part in PARTS]
    return Explorer(
        "What each switch leaves of the peak", controls, Peak(parts, bars="switches", instants=instants(_KINDS)), presets, base=SAME,
        derived=[("accumulated", accumulated * Min(B - 1, 1)), ("batch", ceiling(B / _N)), ("fused_adam", 1 - foreach)],
        subject=("model", "precision", "attention", "switches"), also=("batch", "sequence"),
    )  # fmt: skip
