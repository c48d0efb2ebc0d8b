"""What the book derives of a whole step, by name: read off the courses of a GPT's steps."""

from dataclasses import dataclass
from functools import cache

from sympy import Add, Max, Min, ceiling

from ..rules import formulas as rows
from ..step.course import flat, place_of, standing
from .parameters import of_reference
from .readings import both, expression, letter, merged, more, reading
from .registry import register
from .states import AFTER_STEP, BUFFERS, FRESH, GRADIENT_BUFFER, OPTIMIZER, REST, WEIGHTS
from .symbols import (
    A,
    B,
    H,
    K,
    L,
    P,
    S,
    V,
    accumulated,
    adam,
    autocast,
    c,
    chunked,
    eager,
    foreach,
    g_m,
    loop,
    master,
    n_c,
    s_b,
    scaled,
    w,
)  # fmt: skip

t, full = B * S, 1 - autocast
#: Tokens in a chunk of the chunked loss.
chunk = ceiling(t / n_c)
_READ = "PyTorch, tools/autograd/derivatives.yaml: what each backward reads"
#: What matters to what a block keeps of attention.
_ATTENTION = ("eager", both("narrow"), both("several", "heads"))


# What stands after forward.


def _after_forward(part):
    """What reads off what stands of a part after forward."""
    return lambda **on: reading(**on).last("after_forward").live[part]


def _block(read):
    """What a block keeps, by the switches that matter to it."""
    return merged(read, _ATTENTION) + more(read, "dropped", both("eager"))


def _activations():
    read = _after_forward("activations")
    plain = _block(read)
    found = plain + more(read, "chunked")
    for name, tree in (("segmented", ()), ("selective", both("eager"))):

        def saved(**on):
            return read(**{name: 1}, **on)  # noqa: B023

        found += letter(name) * (merged(saved, tree) + more(saved, "dropped") - plain)
    return expression(found)


def _casts():
    read = _after_forward("casts")
    return expression(merged(read, both("segmented")) + more(read, "chunked"))


def _loss():
    read = _after_forward("loss")
    return expression(merged(read, both("accumulated")) + more(read, "chunked"))


def _made_in(phase, **where):
    """Picks the operations of a phase that stand in these turns of loops."""
    return lambda o: o.phase == phase and where.items() <= dict(o.place).items()


def kept(names=(), beside=0, family="gpt", **fixed):
    """What reads off how much of activations a block's forward leaves: all, or what operations of some names make.

    Args:
        beside: how many of the tensors that such an operation makes are left out, the first of them its result.
    """

    def read(**on):
        found = reading(family, **fixed | on)
        forward = list(filter(_made_in("forward"), flat(found.course.items)))
        makers = list(filter(_made_in("forward", block=1), forward))
        if names and not any(o.name in names for o in makers):
            raise KeyError(f"no operation {names} in a block")
        left = standing(makers, forward)
        return found.bytes(
            p for name, i, p in left if p.part == "activations" and i >= beside and (name in names or not names)
        )

    return read


def _register(name, title, made, chapter, *assumptions, refuses=rows.GPT, source=_READ):
    return register(name, title, made, "B", source=source, chapter=chapter, assumptions=assumptions, refuses=refuses)


_AUTOCAST = "PyTorch, aten/src/ATen/autocast_mode.h"
_SUM = "the sum of the named terms"
_GELU = "nanoGPT's block: query, key and value in one layer, GELU"
_register(
    "activations.block", "what one block keeps for backward", lambda: expression(_block(kept())), "14_activations",
    "no checkpointing", _GELU,
)  # fmt: skip
ACTIVATIONS = _register(
    "activations", "activations after forward: tokens, embeddings, blocks, last norm",
    _activations, "14_activations", _GELU, refuses=rows.BLOCKS,
)  # fmt: skip
CASTS = _register(
    "casts", "autocast's copies of the weights, kept until backward is done with them", _casts, "14_activations", source=_AUTOCAST, refuses=rows.BLOCKS,
)  # fmt: skip
_SQUARES = ("causal mask", "softmax", "weights dropout", "weights cast")
_register(
    "attention.scores", "the squares that eager attention keeps, one block",
    lambda: eager * expression(merged(kept(_SQUARES, eager=1), both("dropped"))), "15_attention",
    source="nanoGPT, model.py; " + _AUTOCAST, refuses=rows.ANY,
)  # fmt: skip
_register(
    "attention.flash", "what flash attention keeps beside query, key, value and output, one block",
    lambda: (1 - eager) * expression(merged(kept(("flash attention",), beside=1))), "15_attention",
    source="Dao et al. 2022, arXiv:2205.14135, algorithm 2; PyTorch, _scaled_dot_product_*_attention", refuses=rows.KERNEL,
)  # fmt: skip
_register("logits", "the logits", t * V * c, "16_loss", source="nanoGPT, model.py", refuses=())
_register(
    "loss.logits", "the logits-sized tensors at the loss's worst moment, in its backward: three of them",
    (t + chunked * (chunk - t)) * V * (full * 3 * c + autocast * (4 + 4 + c)), "16_loss", refuses=(),
    source="PyTorch, F.cross_entropy; " + _AUTOCAST,
)  # fmt: skip
LOSS = _register(
    "loss", "what head and loss hold after forward", _loss, "16_loss", refuses=rows.ANY,
    source="PyTorch, F.cross_entropy; " + _AUTOCAST,
)  # fmt: skip
AFTER_FORWARD = _register(
    "phase.after_forward", "live bytes after forward",
    lambda: REST.expr + accumulated * FRESH.expr + CASTS.expr + ACTIVATIONS.expr + LOSS.expr, "17_the_step", source=_SUM,
    refuses=rows.ALL_BLOCKS,
)  # fmt: skip
_register(
    "phase.after_backward", "live bytes after backward", AFTER_STEP.expr, "17_the_step",
    "gradients are all there, activations are all gone", source=_SUM, refuses=rows.ONE_GPU,
)  # fmt: skip


# The optimizer's step.

#: What it takes beside all tensors at once: gradients in fp32, and the root of the variance.
_GRADIENTS, _ROOTS = 4 * master * (1 - Min(g_m, 1)) * P, adam * foreach * s_b * P


@cache
def _one_root():
    """The loop's most: the tensor before's root, scaled, still has its name while this one's root is scaled."""
    tensors = of_reference(
        "embeddings", "block", "dense", "last", fused=1, gated=0, qk_norm=0, has_positions=1, kv_heads=A, head_width=H / A
    )  # fmt: skip
    order = [(x.numbers, x.count) for x in tensors]
    pairs = [2 * order[0][0]]
    for (first, _), (before, surely), (numbers, there) in zip([(0, 0), *order], order, order[1:], strict=False):
        pairs.append(there * (surely * before + (1 - surely) * first + 2 * numbers))
    return adam * loop * s_b * Max(*pairs, evaluate=False)


def _step():
    most = 4 * scaled + _GRADIENTS + _ROOTS + _one_root()
    return AFTER_STEP.expr + Max(16 * scaled, most, evaluate=False)


_register(
    "phase.step", "the most that lives in the optimizer's step", _step, "17_the_step", source="PyTorch, torch/optim/adam.py",
    refuses=rows.LOOPED,
)  # fmt: skip


# Instants.


def _above(mark, *names):
    """What reads off how much more lives at an operation than at a mark."""

    def read(**on):
        found = reading(**on)
        return sum(found.last(*names).live.values()) - sum(found.last(mark).live.values())

    return read


def _in_loss(name):
    more = _above("after_forward", name)
    return lambda: AFTER_FORWARD.expr.subs(chunked, 0) + expression(merged(more, both("accumulated")))


for _name, _op, _of in (
    ("nll", "negative log-likelihood backward", "the negative log-likelihood"),
    ("log_softmax", "log-softmax backward", "log-softmax"),
):
    _register(
        f"instant.{_name}_backward", f"live bytes in the backward of {_of}", _in_loss(_op), "17_the_step", "the plain loss",
        source=_SUM, refuses=rows.PLAIN,
    )  # fmt: skip
_ENDS = ("token gradient", "token rows gradients added")
_register(
    "instant.end_of_backward", "live bytes as the gradient of the token table is made, or added to the head's",
    lambda: AFTER_STEP.expr + expression(merged(_above("after_backward", *_ENDS), both("tied"), moved=True)),
    "17_the_step", "the plain loss", "one batch a step", source=_SUM, refuses=rows.ONE_BATCH,
)  # fmt: skip


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


#: What matters to the instants of a step, one by one; biases and a tied head add to what lives, whatever else is switched on.
_BIASES = ("qkv_bias", "out_bias", "ffn_bias", "norm_bias")


@cache
def instants(names=None) -> tuple[Instant, ...]:
    """Every instant of a GPT's step, in order, in exact tensor bytes: the peak is the largest of their totals.

    With the plain loss, no checkpointing, one batch, more than one block, and heads and tokens that are more than one.

    Args:
        names: only those with these (moment, name).
    """
    order, levels = _levels()
    rest = {"parameters": WEIGHTS, "buffers": BUFFERS, "optimizer": OPTIMIZER, "gradients": GRADIENT_BUFFER}
    found, known = [], {}
    for place, (moment, name, *_) in enumerate(order):
        if names is not None and (moment, name) not in names:
            continue
        parts = {part: f.expr for part, f in rest.items()}
        for part in ("casts", "gradients", "activations", "loss"):
            level = {key: course[place].get(part, 0) for key, course in levels.items()}
            if (said := tuple(level.values())) not in known:
                known[said] = expression(_over_structures(lambda **on: level[_key(on)]))  # noqa: B023
            parts[part] = parts.get(part, 0) + known[said]
        found.append(Instant(moment, name, parts))
    return tuple(found) + tuple(i for i in _in_the_optimizer() if names is None or (i.moment, i.name) in names)


def _key(on):
    return tuple(sorted(on.items()))


def _over_structures(read):
    """Of what lives at an instant, by all switches that matter to it."""
    found, plain = merged(read, both("dropped", then=("eager", both("narrow"), both("several"))), moved=True), None
    for name in (*_BIASES, "tied"):
        plain = merged(read, moved=True) if plain is None else plain
        found += (letter(name) - 1) * (plain - merged(lambda **on: read(**on, **{name: 0}), moved=True))  # noqa: B023
    return found


def _levels():
    """(the order of instants, structure -> part -> bytes more than between steps at each of them)."""
    order, changes = [], {}

    def see(**on):
        changes[_key(on)] = _changes(reading(**on))
        return 0

    _over_structures(see)
    for found in sorted(changes.values(), key=len, reverse=True):
        _insert(order, found)
    return order, {key: _filled(found, order) for key, found in changes.items()}


def _changes(read):
    """(where, name, turn, which of equal ones) -> part -> bytes more than between steps: while it runs, and after it."""
    found, seen = {}, {}
    for moment in read.moments:
        operation, turn = moment.operation, dict(moment.operation.place).get("block")
        if operation.phase not in ("forward", "backward") or (operation.phase == "forward" and turn == 0):
            continue
        if not operation.taken:
            continue
        key = place_of(operation), operation.name, turn
        seen[key] = seen.get(key, 0) + 1
        more = [{part: live[part] - read.rest[part] for part in live} for live in (moment.live, moment.after)]
        found[*key, seen[key]] = more
    return found


def _insert(order, keys):
    """Put into an order what it lacks, each after what stands before it."""
    place = 0
    for key in keys:
        if key in order:
            place = max(place, order.index(key) + 1)
        else:
            order.insert(place, key)
            place += 1


def _filled(changes, order):
    """What lives at each place of the order; where a step has no such operation, what lives once those before it have run."""
    found, passed, states, course = [], -1, list(changes.values()), {key: i for i, key in enumerate(changes)}
    for key in order:
        passed = max(passed, course.get(key, -1))
        found.append(changes[key][0] if key in changes else states[passed][1] if passed >= 0 else {})
    return found


def _in_the_optimizer():
    parts = {"parameters": WEIGHTS.expr, "buffers": BUFFERS.expr, "gradients": GRADIENT_BUFFER.expr + FRESH.expr}
    tokens = {"activations": 8 * t, "loss": 8 * t + w}
    for name, taken in (
        ("gradients unscaled", 16 * scaled),
        ("fp32 gradients", 4 * scaled + _GRADIENTS),
        ("root of the variance", 4 * scaled + _GRADIENTS + _ROOTS),
        ("root of one tensor's variance", 4 * scaled + _GRADIENTS + _one_root()),
    ):
        yield Instant("optimizer step", name, parts | tokens | {"optimizer": OPTIMIZER.expr + taken})


# Checkpointing.

_CHECKPOINT = {
    "chapter": "22_checkpointing",
    "source": "Chen et al. 2016, arXiv:1604.06174; PyTorch, torch/utils/checkpoint.py",
}


def _again(block, part=None):
    """What reads off how much a block holds that is recomputed: which of a segment of three."""

    def read(**on):
        found = reading(segmented=1, segment=3, **on)  # so short that each of its blocks is traced
        everything = list(flat(found.course.items))
        forward = {o.name for o in filter(_made_in("forward", block=1), everything)}
        again = [o for o in filter(_made_in("backward", segment=1), everything) if o.name in forward]
        return found.bytes(p for _, _, p in standing([o for o in again if ("block", block) in o.place], again))

    return read


def _segment():
    return expression((letter("K") - 1) * _block(_again(1)) + _block(_again(2)))


_register(
    "checkpoint.inputs", "what segments keep of the residual stream: the output of each", ceiling(L / K) * t * H * w,
    refuses=rows.ANY, **_CHECKPOINT,
)  # fmt: skip
_register(
    "checkpoint.block", "what a recomputed block holds for its backward, autocast's copies of its weights included",
    lambda: expression(_block(_again(1))), _CHECKPOINT["chapter"],
    "not the last of its segment, whose output nobody asks for", source=_CHECKPOINT["source"],
)  # fmt: skip
_register(
    "checkpoint.segment", "what a segment of K blocks holds when it is recomputed, autocast's copies of weights included",
    _segment, _CHECKPOINT["chapter"], "a full segment; the last one may be shorter", source=_CHECKPOINT["source"],
)  # fmt: skip
for _way, _what in (
    ("selective", "attention is recomputed"),
    ("operations", "all but matrix products and attention is recomputed"),
):
    _register(
        f"checkpoint.{_way}", f"what one block keeps for backward where {_what}",
        lambda way=_way: expression(_block(kept(checkpointing=way))), source=_CHECKPOINT["source"],
        chapter=_CHECKPOINT["chapter"],
    )  # fmt: skip


# A Llama.

_register(
    "activations.llama", "what one block of a Llama keeps for backward",
    lambda: expression(merged(kept(family="llama"))), "14_activations",
    "no checkpointing", "flash attention; in fp32, as many key heads as query heads", "heads that are a multiple of eight wide",
    "queries and keys are turned before heads and tokens change places",
    source="PyTorch, tools/autograd/derivatives.yaml: what each backward reads; Shazeer 2020, arXiv:2002.05202 (SwiGLU)",
    refuses=rows.LLAMA,
)  # fmt: skip
