"""What a mixture's operations make, save and free: rows that are chosen, gathered, multiplied in groups, and sent."""

from .autograd import record, save, wants_gradient
from .operations import lowered, lowered_weight, wider
from .tape import BITS16, FP32, INT64
from .tensors import new, several, transposed, view


def increased(x, y, title):
    """A sum in place. Nothing is saved."""
    out = view(x, x.shape, x.strides)
    record(out, title, lambda node, grads: [grads[0], grads[0]], [x, y])
    return out


def largest(scores, count, title):
    """Of each row the largest, and where they are: backward scatters into zeros, in place."""
    shape, found = scores.shape, (*scores.shape[:-1], count)
    values, indices = several(scores.tape, title, (found, scores.type), (found, INT64))

    def run(node, grads, *_):
        return [new(grads[0].tape, f"{title} backward", shape, grads[0].type)]  # zeros, filled in place

    record(values, title, run, [scores], results=[indices])
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
    tape, wide = weights.tape, wider(weights, total)
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
    tape, (count, inputs), (experts, _, outputs), kind = rows.tape, rows.shape, turned.shape, turned.type
    to_rows, to_turned = wants_gradient(tape, rows), wants_gradient(tape, turned)
    saved = save(tape, [rows, turned], *[rows] * to_turned, *[turned] * to_rows, ends)

    def multiplied(title, shape):
        out = new(tape, title, shape, kind)
        tape.multiplied(count, inputs, outputs, by="grouped product")
        return out

    out = tape.kernel("aten._grouped_mm", lambda: multiplied(title, (count, outputs)))

    def run(node, grads, *_):
        second = None
        if node.edges[1]:
            second = transposed(multiplied(f"{title} weight gradient", (experts, outputs, inputs)), 1, 2)
        return [multiplied(f"{title} input gradient", (count, inputs)) if node.edges[0] else None, second]

    record(out, title, run, [rows, turned], saved)
    return out


def repeated(x, times, title):
    """Rows again and again; their gradients are added."""
    before = x.shape
    out = new(x.tape, title, (times * before[0], *before[1:]), x.type)
    record(out, title, lambda node, grads: [new(grads[0].tape, f"{title} backward", before, grads[0].type)], [x])
    return out


def scattered(x, index, source, title):
    """Numbers, or one, put into rows of a new tensor, in place. Its gradient is gathered from theirs."""
    if isinstance(source, int):
        return x
    saved, shape = save(x.tape, [source], index), source.shape

    def run(node, grads, *_):
        return [new(grads[0].tape, f"{title} backward", shape, grads[0].type)]

    record(x, title, run, [source], saved)
    return x


def batched(rows, weight, title):
    """Each expert's rows (E, T, I) times its matrix. The catalog says matrices as (E, O, I). Source: `bmm` in derivatives.yaml."""
    tape = rows.tape
    weight = lowered_weight(weight, f"{title} weight cast")
    rows = lowered(rows, f"{title} input cast")
    (experts, count, inputs), outputs, kind = rows.shape, weight.shape[1], rows.type
    to_rows, to_weight = wants_gradient(tape, rows), wants_gradient(tape, weight)
    saved, whole = save(tape, [rows, weight], *[rows] * to_weight, *[weight] * to_rows), weight.shape

    def multiplied(title, shape):
        out = new(tape, title, shape, kind)
        tape.multiplied(experts, count, inputs, outputs)
        return out

    out = tape.kernel("aten.bmm", lambda: multiplied(title, (experts, count, outputs)))

    def run(node, grads, *_):
        second = multiplied(f"{title} weight gradient", whole) if node.edges[1] else None
        return [multiplied(f"{title} input gradient", (experts, count, inputs)) if node.edges[0] else None, second]

    record(out, title, run, [rows, weight], saved)
    return out


def exchanged(x, rows, title):
    """Rows of other GPUs for this GPU's. What is sent lives until what comes is used: NCCL's process group keeps it.

    Source: `all_to_all_single_autograd`.
    """
    before = x.shape
    out = new(x.tape, title, (rows, *before[1:]), x.type)
    record(out, title, lambda node, grads: [new(grads[0].tape, f"{title} backward", before, grads[0].type)], [x])
    out.sent = x
    return out
