"""What the book derives of a whole step, by name: read off the ledger."""

from dataclasses import dataclass
from functools import cache

from sympy import Add, Max, Min, ceiling, expand

from .ledger import Ledger, chunk, chunks, exact, full, t
from .registry import register
from .states import AFTER_STEP, BUFFERS, FRESH, GRADIENT_BUFFER, OPTIMIZER, REST, SHARES, WEIGHTS
from .symbols import (
    H,
    K,
    L,
    P,
    V,
    accumulated,
    adam,
    autocast,
    c,
    chunked,
    foreach,
    g_m,
    master,
    moved,
    s_b,
    scaled,
    segmented,
    selective,
    tied,
    w,
)  # fmt: skip
from .walking import Shape, walk


@dataclass(frozen=True)
class Instant:
    """Live bytes while one operation runs; `parts` is part -> expression. Of the blocks, the first and the last."""

    moment: str
    name: str
    parts: dict[str, object]

    @property
    def total(self):
        """Live bytes in all."""
        return Add(*self.parts.values())


def _rest():
    states = {"parameters": WEIGHTS, "buffers": BUFFERS, "optimizer": OPTIMIZER, "gradients": GRADIENT_BUFFER}
    return {part: f.expr for part, f in states.items()}


@cache
def instants() -> tuple[Instant, ...]:
    """Every instant of the step, in order, in exact tensor bytes: the peak is the largest of their totals.

    With the plain loss, no checkpointing and one batch.
    """
    seen = []

    def see(moment, name, live):
        if name is not None:
            seen.append(Instant(moment, name, dict(live)))

    walk(_EXACT.amounts(), Shape(_Layers()), _rest(), see)
    return tuple(seen)


class _Layers:
    """The number of blocks as a letter: more than one."""

    def __sub__(self, other):
        return L - other

    def __gt__(self, other):
        return True


_EXACT, _EXACT_CHUNKED = Ledger(exact), Ledger(exact, chunked=True)
_SEGMENTS, _SELECTIVE = Ledger(exact, checkpointing="segments"), Ledger(exact, checkpointing="selective")
_LATER = Ledger(exact, accumulation="later")


def _kept_by_blocks(part):
    """What the blocks' forward leaves of a part, under any checkpointing; autocast's copies of biases go as forward ends."""
    gone = _SEGMENTS.kept("loss", part) - _EXACT.kept("loss", part)  # the other copies, where segments forget them
    passed = ceiling(L / K) * _SEGMENTS.kept("first_block_passed", part)
    passed += (L - ceiling(L / K)) * _SEGMENTS.kept("block_passed", part) + gone
    kept = _EXACT.kept("block_forward", part)
    kept += selective * expand(_SELECTIVE.kept("block_forward", part) - kept)
    return (1 - segmented) * L * kept + segmented * expand(passed)


def _kept_by_loss(part):
    """What the loss's forward leaves of a part, plain or chunked."""
    plain = _EXACT.kept("loss", part)
    passed = (chunks - 1) * _EXACT_CHUNKED.kept("chunk_forward", part)
    passed += sum(_EXACT_CHUNKED.kept(s, part) for s in ("chunked_loss", "last_chunk_forward", "chunks_added"))
    return plain + chunked * expand(passed - plain)


def _register(
    name,
    title,
    expr,
    chapter,
    *assumptions,
    source="PyTorch, tools/autograd/derivatives.yaml: what each backward reads",
):
    return register(name, title, expr, "B", source=source, chapter=chapter, assumptions=assumptions)


_AUTOCAST = "PyTorch, aten/src/ATen/autocast_mode.h"
BLOCK_KEPT = _register(
    "activations.block", "what one block keeps for backward", _EXACT.kept("block_forward", "activations"), "14_activations",
    "no checkpointing; nanoGPT's block",
)  # fmt: skip
ACTIVATIONS = _register(
    "activations", "activations after forward: tokens, embeddings, blocks, last norm",
    _EXACT.kept("start", "activations") + _kept_by_blocks("activations") + _kept_by_loss("activations"), "14_activations",
)  # fmt: skip
CASTS = _register(
    "casts", "autocast's copies of the weights, kept until backward is done with them",
    _kept_by_blocks("casts") + _kept_by_loss("casts"), "14_activations", source=_AUTOCAST,
)  # fmt: skip
SCORES = _register(
    "attention.scores", "the squares that eager attention keeps, one block",
    _EXACT.kept("block_forward", "activations", names={"future", "weights", "weights_dropped", "weights.mask", "weights_cast"}),
    "15_attention", source="nanoGPT, model.py; " + _AUTOCAST,
)  # fmt: skip
FLASH = _register(
    "attention.flash", "what flash attention keeps beside query, key, value and output, one block",
    _EXACT.kept("block_forward", "activations", names={"lse", "lse32", "seed", "offset"}), "15_attention",
    source="Dao et al. 2022, arXiv:2205.14135, algorithm 2; PyTorch, _scaled_dot_product_*_attention",
)  # fmt: skip
LOGITS = _register("logits", "the logits", t * V * c, "16_loss", source="nanoGPT, model.py")
LOGITS_AT_PEAK = _register(
    "loss.logits", "the logits-sized tensors at the loss's worst moment, in its backward: three of them",
    (t + chunked * (chunk - t)) * V * (full * 3 * c + autocast * (4 + 4 + c)), "16_loss",
    source="PyTorch, F.cross_entropy; " + _AUTOCAST,
)  # fmt: skip
LOSS = _register(
    "loss", "what head and loss hold after forward",
    _EXACT.kept("start", "loss") + _kept_by_loss("loss") + SHARES.expr, "16_loss",
    source="PyTorch, F.cross_entropy; " + _AUTOCAST,
)  # fmt: skip
_SUM = "the sum of the named terms"
AFTER_FORWARD = _register(
    "phase.after_forward", "live bytes after forward",
    REST.expr + accumulated * FRESH.expr + CASTS.expr + ACTIVATIONS.expr + LOSS.expr, "17_the_step", source=_SUM,
)  # fmt: skip
_register(
    "phase.after_backward", "live bytes after backward", AFTER_STEP.expr, "17_the_step",
    "gradients are all there, activations are all gone", source=_SUM,
)  # fmt: skip
_fresh = 4 * master * (1 - Min(g_m, 1)) * P
STEP = _register(
    "phase.step", "the most that lives in the optimizer's step",
    AFTER_STEP.expr
    + Max(16 * scaled, 4 * scaled + _fresh + adam * foreach * s_b * P + _EXACT.tensors["root"][1], evaluate=False),
    "17_the_step", source="PyTorch, torch/optim/adam.py",
)  # fmt: skip


def _in_loss(upto):
    """Live bytes while an operation of the plain loss's backward runs."""
    first, later = (ledger.kept("loss_backward", upto=upto) for ledger in (_EXACT, _LATER))
    return AFTER_FORWARD.expr.subs(chunked, 0) + first + accumulated * expand(later - first)


NLL = _register(
    "instant.nll_backward", "live bytes in the backward of the negative log-likelihood",
    _in_loss("negative log-likelihood backward"), "17_the_step", "the plain loss", source=_SUM,
)  # fmt: skip
LOG_SOFTMAX = _register(
    "instant.log_softmax_backward", "live bytes in the backward of log-softmax",
    _in_loss("log-softmax backward"), "17_the_step", "the plain loss", source=_SUM,
)  # fmt: skip


def _at_the_end():
    """The last two operations of backward: the table's gradient made, and added to the head's where that takes a third."""
    size = {name: tensor[1] for name, tensor in _EXACT.tensors.items()}
    third = tied * full
    made = (1 - tied) * moved * size["token.grad"] + (1 - third) * (size["dx"] + size["token.partial"])
    added = third * (size["token.partial"] + size["head.partial"] + moved * size["token.sum"])
    return AFTER_STEP.expr + made + added + size["one"] + size["scaled_loss"]


END = _register(
    "instant.end_of_backward", "live bytes as the gradient of the token table is made, or added to the head's",
    _at_the_end(), "17_the_step", "the plain loss", "one batch a step", source=_SUM,
)  # fmt: skip

_CHECKPOINT = {
    "chapter": "22_checkpointing",
    "source": "Chen et al. 2016, arXiv:1604.06174; PyTorch, torch/utils/checkpoint.py",
}


def _register_checkpoint(name, title, expr, *assumptions):
    return register(name, title, expr, "B", assumptions=assumptions, **_CHECKPOINT)


_register_checkpoint(
    "checkpoint.inputs", "what segments keep of the residual stream: the output of each", ceiling(L / K) * t * H * w
)
_register_checkpoint(
    "checkpoint.block", "what a block that is made again holds for its backward, autocast's copies of its weights included",
    _SEGMENTS.kept("block_again") + _SEGMENTS.kept("casts_dropped"),
    "not the last of its segment, whose output nobody asks for",
)  # fmt: skip
_register_checkpoint(
    "checkpoint.segment", "what a segment of K blocks holds when it is made again, autocast's copies of weights included",
    (K - 1) * _SEGMENTS.kept("block_again") + _SEGMENTS.kept("last_block_again") + K * _SEGMENTS.kept("casts_dropped"),
    "a full segment; the last one may be shorter",
)  # fmt: skip
_register_checkpoint(
    "checkpoint.selective", "what one block keeps for backward where attention is made again",
    _SELECTIVE.kept("block_forward", "activations"),
)  # fmt: skip
