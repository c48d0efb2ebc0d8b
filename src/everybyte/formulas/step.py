"""Formulas of a whole training step, read off the courses of a GPT's steps."""

from functools import partial

from sympy import ceiling

from ..step.course import flat, standing
from .readings import both, expression, letter, merged, more, reading
from .registry import register
from .states import AFTER_STEP, FRESH, REST
from .symbols import B, H, K, L, S, V, accumulated, autocast, c, chunked, eager, n_c, w
from .temporaries import taken

t, full = B * S, 1 - autocast
#: Tokens in a chunk of the chunked loss.
chunk = ceiling(t / n_c)
#: The switches that decide what attention saves in a block.
_ATTENTION = ("eager", both("narrow"), both("several", "heads"))


# What lives after forward.


def _after_forward(part):
    """A function of switches: the bytes of a part that live after forward."""
    return lambda **on: reading(**on).last("after_forward").live[part]


def _block(read):
    """What a block saves for backward, over the switches that it depends on. read: switches -> bytes."""
    return merged(read, _ATTENTION) + more(read, "dropped", both("eager"))


def _activations():
    read = _after_forward("activations")
    plain = _block(read)
    found = plain + more(read, "chunked")
    for name, tree in (("segmented", ()), ("selective", both("eager"))):
        saved = partial(read, **{name: 1})
        found += letter(name) * (merged(saved, tree) + more(saved, "dropped") - plain)
    return expression(found)


def _with_chunks(part, switch):
    """A part's bytes after forward, where they depend on one switch and on whether the loss is chunked."""
    read = _after_forward(part)
    return expression(merged(read, both(switch)) + more(read, "chunked"))


def _made(course, phase, **where):
    """The operations of a phase in these turns of the loops, such as block=1."""
    return [o for o in flat(course.items) if o.phase == phase and where.items() <= dict(o.place).items()]


def kept(names=(), beside=0, family="gpt", **fixed):
    """A function of switches: the activations that a block saves for backward, in bytes; of all its operations, or those of some names.

    Args:
        beside: how many of an operation's tensors are left out; the first is its result.
    """

    def read(**on):
        found = reading(family, **fixed | on)
        makers = _made(found.course, "forward", block=1)
        if names and not any(o.name in names for o in makers):
            raise KeyError(f"no operation {names} in a block")
        left = standing(makers, _made(found.course, "forward"))
        return found.bytes(
            p for name, i, p in left if p.part == "activations" and i >= beside and (name in names or not names)
        )

    return read


_SQUARES = ("causal mask", "softmax", "weights dropout", "weights cast")
register("activations.block", lambda: expression(_block(kept())))
ACTIVATIONS = register("activations", _activations)
CASTS = register("casts", lambda: _with_chunks("casts", "segmented"))
register("attention.scores", lambda: eager * expression(merged(kept(_SQUARES, eager=1), both("dropped"))))
register("attention.flash", lambda: (1 - eager) * expression(merged(kept(("flash attention",), beside=1))))
register("logits", t * V * c)
register("loss.logits", (t + chunked * (chunk - t)) * V * (full * 3 * c + autocast * (4 + 4 + c)))
LOSS = register("loss", lambda: _with_chunks("loss", "accumulated"))
AFTER_FORWARD = register(
    "phase.after_forward",
    lambda: REST.expr + accumulated * FRESH.expr + CASTS.expr + ACTIVATIONS.expr + LOSS.expr,
)
register("phase.after_backward", AFTER_STEP.expr)
register("phase.step", lambda: AFTER_STEP.expr + taken())


# Instants.


def _above(mark, *names):
    """A function of switches: how many bytes more live at the last operation of these names than at a mark."""

    def read(**on):
        found = reading(**on)
        return sum(found.last(*names).live.values()) - sum(found.last(mark).live.values())

    return read


def _in_loss(name):
    above = merged(_above("after_forward", name), both("accumulated"))
    return AFTER_FORWARD.expr.subs(chunked, 0) + expression(above)


def _at_the_end():
    above = _above("after_backward", "token gradient", "token rows gradients added")
    return AFTER_STEP.expr + expression(merged(above, both("tied"), moved=True))


register("instant.nll_backward", lambda: _in_loss("negative log-likelihood backward"))
register("instant.log_softmax_backward", lambda: _in_loss("log-softmax backward"))
register("instant.end_of_backward", _at_the_end)


# Checkpointing.


def _again(block):
    """A function of switches: the bytes that a recomputed block saves. block: which of a segment of three."""

    def read(**on):
        found = reading(segmented=1, segment=3, **on)  # so short that each of its blocks is traced
        forward = {o.name for o in _made(found.course, "forward", block=1)}
        again = [o for o in _made(found.course, "backward", segment=1) if o.name in forward]
        return found.bytes(p for _, _, p in standing([o for o in again if ("block", block) in o.place], again))

    return read


register("checkpoint.inputs", ceiling(L / K) * t * H * w)
register("checkpoint.block", lambda: expression(_block(_again(1))))
register("checkpoint.segment", lambda: expression((letter("K") - 1) * _block(_again(1)) + _block(_again(2))))
register("checkpoint.selective", lambda: expression(_block(kept(checkpointing="selective"))))
register("checkpoint.operations", lambda: expression(_block(kept(checkpointing="operations"))))

register("activations.llama", lambda: expression(merged(kept(family="llama"))))
