"""What a mixture's operations make, save and free: rows that are chosen, gathered, multiplied in groups, and sent."""

from .autograd import record, save, wants_gradient
from .operations import lowered, lowered_weight, multiplied, whole, widest
from .tape import BITS16, FP32, INT64
from .tensors import new, several, view


def increased(x, y, title):
    """A sum in place. Nothing is saved."""
    out = view(x, x.shape, x.strides)
    record(out, title, lambda node, grads: [grads[0], grads[0]], [x, y])
    return out


def largest(scores, count, title):
    """Of each row the largest, and where they are: backward scatters into zeros, in place."""
    shape, found = scores.shape, (*scores.shape[:-1], count)
    values, indices = several(scores.tape, title, (found, scores.type), (found, INT64))
    record(values, title, whole(f"{title} backward", shape), [scores], results=[indices])
    return values, indices


def summed(x, axis, keeps, title):
    """A sum over one dimension, of which size 1 is kept or nothing, or with None over all; its gradient is repeated by a view.

    Autocast asks for a sum in fp32, and casts no input.
    """
    before, whole = x.shape, x.type.name in ("bool", "int32")
    if axis is None:
        shape = ()
    else:
        axis %= len(before)
        shape = (*before[:axis], *[1] * keeps, *before[axis + 1 :])
    wide = FP32 if x.tape.autocast and x.type.name in BITS16 else x.type
    out = new(x.tape, title, shape, INT64 if whole else wide)

    def run(node, grads):
        grad = grads[0]
        if axis is None:
            return [view(grad, before, (0,) * len(before))]
        strides = list(grad.strides)
        strides[axis : axis + keeps] = [0]
        return [view(grad, before, tuple(strides))]

    record(out, title, run, [x])
    return out


def divided(weights, total):
    """Weights divided by their sum in place: what they were is copied first, for backward."""
    tape, wide = weights.tape, widest(weights, total)
    saved = []
    if wants_gradient(tape, weights):
        copy = new(tape, "weights before", weights.shape, weights.type)
        saved = save(tape, [weights], copy, total)
    out = view(weights, weights.shape, weights.strides)

    def run(node, grads, *_):
        grad = grads[0]

        def like(name, type=wide):
            return new(grad.tape, name, grad.shape, type)

        once = like("weights over their sum")
        twice = like("weights over their sum twice")
        minus = like("gradient negated", grad.type)
        to_total = like("gradient of the sum")
        del once, twice, minus
        return [like("gradient over the sum"), to_total]

    record(out, "weights normalized", run, [weights, total], saved)
    return out


def indexed(x, index, title):
    """Rows of a tensor by their numbers; backward adds gradients to zeros, in place."""
    before, count = x.shape, index.shape[0]  # `run` must not hold the index itself
    saved = save(x.tape, [x], index)
    out = new(x.tape, title, (*index.shape, *before[1:]), x.type)

    def run(node, grads, *_):
        made = new(grads[0].tape, f"{title} backward", before, grads[0].type)  # zeros, filled in place
        made.tape.by("rows backward", count, before[0])
        return [made]

    record(out, title, run, [x], saved)
    return out


def grouped(rows, turned, ends, title):
    """Each group of rows times its own matrix, in the weights' type whatever autocast says. Source: `at::_grouped_mm`."""
    (count, inputs), outputs = rows.shape, turned.shape[-1]
    sizes, options = (count, inputs, outputs), {"turned": True, "kept": (ends,), "by": "grouped product"}
    return multiplied("aten._grouped_mm", title, rows, turned, (count, outputs), sizes, **options)


def repeated(x, times, title):
    """Rows again and again; their gradients are added."""
    before = x.shape
    out = new(x.tape, title, (times * before[0], *before[1:]), x.type)
    record(out, title, whole(f"{title} backward", before), [x])
    return out


def scattered(x, index, source, title):
    """Numbers, or one, put into rows of a new tensor, in place. Its gradient is gathered from theirs."""
    if isinstance(source, int):
        return x
    record(x, title, whole(f"{title} backward", source.shape), [source], save(x.tape, [source], index))
    return x


def batched(rows, weight, title):
    """Each expert's rows (E, T, I) times its matrix. The catalog says matrices as (E, O, I). Source: `bmm` in derivatives.yaml."""
    weight = lowered_weight(weight, f"{title} weight cast")
    rows = lowered(rows, f"{title} input cast")
    shape = *rows.shape[:2], weight.shape[1]
    return multiplied("aten.bmm", title, rows, weight, shape, (*rows.shape, shape[-1]))


def exchanged(x, rows, title):
    """Rows of other GPUs for this GPU's. What is sent lives until what comes is used: NCCL's process group keeps it.

    Source: `all_to_all_single_autograd`.
    """
    out = new(x.tape, title, (rows, *x.shape[1:]), x.type)
    record(out, title, whole(f"{title} backward", x.shape), [x])
    out.sent = x
    return out
