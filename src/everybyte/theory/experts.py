"""A mixture layer: a router, and experts whose rows are multiplied in groups. Source: `reference/mixtral.py`, line by line.

Of B S tokens each visits K experts, which makes B S K rows, whatever the router says.
"""

from . import operations as op
from .autograd import record, save, unpacked, wants_gradient
from .letters import product
from .tape import FP32, INT32, INT64
from .tensors import new, several, transposed, view


def mixture(network, path, x):
    """Tokens to experts and back."""
    tokens = op.reshape(x, (x.shape[0] * x.shape[1], x.shape[2]), "experts' tokens")
    _logits, weights, chosen = route(network, path, tokens)
    return op.reshape(visit(network, path, tokens, weights, chosen), x.shape, "experts")


def route(network, path, tokens):
    logits = network.linear(f"{path}.router", tokens, "router")
    scores = op.softmax(op.cast(logits, FP32, "router's logits in fp32"), "router's softmax")
    weights, chosen = _largest(scores, network.model.experts_per_token)
    weights = _normalized(weights, summed(weights, -1, "sum of a token's weights"))
    return logits, weights, chosen


def visit(network, path, tokens, weights, chosen):
    tape, model = network.tape, network.model
    rows_of = (product(weights.shape),)
    weights, chosen = op.reshape(weights, rows_of, "visits' weights"), op.reshape(chosen, rows_of, "visits")
    expert, order = several(tape, "visits sorted", (rows_of, INT64), (rows_of, INT64))
    rows = indexed(tokens, new(tape, "visits' tokens", rows_of, INT64), "visits' rows")
    weights = indexed(weights, order, "visits' weights sorted")
    counted = new(tape, "visits in int32", rows_of, INT32)  # noqa: F841
    visitors = new(tape, "visitors", (model.experts,), INT32)  # noqa: F841
    ends = new(tape, "experts' ends", (model.experts,), INT32)

    gate_up = grouped(rows, network.parameters[f"{path}.gate_up"], ends, "experts' gate and up")
    gate, up = op.split(gate_up, (model.expert_width, model.expert_width), -1, "experts' gate and up gradient")
    inner = op.multiply(op.activation(gate, model.activation), up, "experts' product")
    outer = op.multiply(
        grouped(inner, network.parameters[f"{path}.down"], ends, "experts' down"),
        unsqueezed(weights),
        "visits weighted",
    )

    back = new(tape, "visits' places", rows_of, INT64)
    counting = new(tape, "visits counted", rows_of, INT64)
    del counting
    outer = op.reshape(
        indexed(outer, back, "visits back in order"),
        (tokens.shape[0], model.experts_per_token, tokens.shape[1]),
        "visits",
    )
    return op.cast(summed(outer, 1, "visits added"), tokens.type, "experts cast")


def _largest(scores, count):
    """Of each row the largest, and where they are: backward scatters into zeros, in place."""
    shape, found = scores.shape, (*scores.shape[:-1], count)
    values, indices = several(scores.tape, "largest", (found, scores.type), (found, INT64))

    def run(node, grads):
        read = unpacked(node)  # noqa: F841
        return [new(grads[0].tape, "largest backward", shape, grads[0].type)]  # zeros, filled in place

    record(values, "largest", run, [scores], results=[indices])
    return values, indices


def summed(x, axis, title):
    """A sum over one dimension, kept with size 1 where it is the last; its gradient is repeated by a view."""
    axis %= len(x.shape)
    before, last = x.shape, axis == len(x.shape) - 1
    shape = (*before[:axis], *((1,) if last else ()), *before[axis + 1 :])
    out = new(x.tape, title, shape, x.type)

    def run(node, grads):
        grad = grads[0]
        strides = list(grad.strides)
        strides[axis : axis + last] = [0]
        return [view(grad, before, tuple(strides))]

    record(out, title, run, [x])
    return out


def _normalized(weights, total):
    """Weights divided by their sum in place: what they were is copied first, for backward."""
    tape = weights.tape
    saved = []
    if wants_gradient(tape, weights):
        copy = new(tape, "weights before", weights.shape, weights.type)
        saved = save(tape, [weights], copy, total)
    out = view(weights, weights.shape, weights.strides)

    def run(node, grads):
        grad = grads[0]
        read = unpacked(node)  # noqa: F841

        def like(name):
            return new(grad.tape, name, grad.shape, grad.type)

        once = like("weights over their sum")
        twice = like("weights over their sum twice")
        minus = like("gradient negated")
        to_total = like("gradient of the sum")
        del once, twice, minus
        return [like("gradient over the sum"), to_total]

    record(out, "weights normalized", run, [weights, total], saved)
    return out


def indexed(x, index, title):
    """Rows of a tensor by their numbers; backward adds gradients to zeros, in place."""
    before = x.shape
    saved = save(x.tape, [x], index)
    out = new(x.tape, title, (*index.shape, *before[1:]), x.type)

    def run(node, grads):
        read = unpacked(node)  # noqa: F841
        return [new(grads[0].tape, f"{title} backward", before, grads[0].type)]  # zeros, filled in place

    record(out, title, run, [x], saved)
    return out


def unsqueezed(x):
    out = view(x, (*x.shape, 1), (*x.strides, 1))
    record(
        out, "visits' weights", lambda node, grads: [view(grads[0], grads[0].shape[:-1], grads[0].strides[:-1])], [x]
    )
    return out


def grouped(rows, weight, ends, title):
    """Each group of rows times its own matrix, in the weights' type whatever autocast says. Source: `at::_grouped_mm`."""
    rows = op.cast(rows, weight.type, f"{title} input cast")
    tape, (count, inputs), (experts, outputs, _) = rows.tape, rows.shape, weight.shape
    turned, kind = op.transpose(weight, 1, 2), weight.type
    to_rows, to_turned = wants_gradient(tape, rows), wants_gradient(tape, turned)
    saved = save(tape, [rows, turned], *[rows] * to_turned, *[turned] * to_rows, ends)

    def multiplied(title, shape):
        out = new(tape, title, shape, kind)
        tape.multiplied(count, inputs, outputs)
        return out

    out = tape.kernel("matmul", lambda: multiplied(title, (count, outputs)))

    def run(node, grads):
        read = unpacked(node)  # noqa: F841
        second = None
        if node.edges[1]:
            second = transposed(multiplied(f"{title} weight gradient", (experts, outputs, inputs)), 1, 2)
        return [multiplied(f"{title} input gradient", (count, inputs)) if node.edges[0] else None, second]

    record(out, title, run, [rows, turned], saved)
    return out
