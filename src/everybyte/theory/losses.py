"""What the losses of PyTorch make, save and free: cross-entropy, and head and cross-entropy in one function."""

from . import operations as op
from .autograd import record, save, wants_gradient
from .tape import BITS16, BOOL, FP32, INT64
from .tensors import new, several


def cross_entropy(logits, targets, reduction="mean"):
    """The mean of the next tokens' negative log-likelihoods: log-softmax saves its result, the loss that and the targets."""
    out = op.like("log-softmax", logits)
    record(out, "log-softmax", op.alike("log-softmax backward"), [logits], results=[out])
    log_p = op.raised(out, "log-probabilities in fp32")
    saved = save(log_p.tape, [log_p], log_p, targets)
    loss, weight = several(log_p.tape, "loss", ((), log_p.type), ((), log_p.type))
    back = op.whole("negative log-likelihood backward", log_p.shape)
    record(loss, "negative log-likelihood", back, [log_p], saved, [weight])
    return loss


def linear_cross_entropy(x, weight, chunks):
    """Head and mean cross-entropy of rows `x`, so many at a time: no chunk is kept, and both gradients are made in forward.

    Of 16 bits the logits are fp32, a chunk of inputs too, and each chunk's gradient of the logits is cast. Backward scales the
    gradients where they are; but before, autograd makes zeros for the gradients *of* them, which nobody asks for.

    Source: `torch/nn/modules/linear_cross_entropy.py`, `_linear_cross_entropy_batch_chunked_accumulator`, line by line, with what
    `LinearCrossEntropyOptions()` chooses on CUDA.
    """
    tape, kind, (rows, width), vocabulary, size = x.tape, x.type, x.shape, weight.shape[0], chunks[0]
    wide, trained = FP32 if kind.name in BITS16 else kind, wants_gradient(tape, weight)
    logits = new(tape, "logits of a chunk", (size, vocabulary), wide)  # noqa: F841
    factors = new(tape, "factors of a chunk", (size,), wide)  # noqa: F841
    out = new(tape, "loss", (), kind)
    made = [new(tape, "head input gradient", x.shape, kind)]
    if trained:
        made.append(new(tape, "head weight gradient", weight.shape, kind))
    mask, targets = new(tape, "targets left out", (rows,), BOOL), new(tape, "targets", (rows,), INT64)  # noqa: F841
    taken = new(tape, "targets taken", (rows,), BOOL)
    shares = new(tape, "shares in the loss", (rows,), wide)  # noqa: F841
    del taken
    divisor = [new(tape, "divisor", (), type) for type in (wide, BOOL, wide, wide)]
    del divisor
    if wide is not kind and trained:
        inputs = new(tape, "inputs of a chunk in fp32", (size, width), wide)  # noqa: F841
    sums = low = scaled = None  # noqa: F841  what a chunk leaves has its name until the next one's
    for i, count in enumerate(chunks):
        with tape.turn("chunk", i):
            tape.note("logits", [])
            tape.multiplied(count, width, vocabulary)
            picked = new(tape, "targets' logits", (count,), wide)
            new(tape, "part of the loss", (), wide)
            del picked
            sums = new(tape, "sums of exponentials", (count,), wide)  # noqa: F841
            new(tape, "part of the loss", (), wide)
            if wide is not kind:
                low = new(tape, "gradient of the logits cast", (count, vocabulary), kind)  # noqa: F841
            picked = new(tape, "targets' rows", (count, width), weight.type)
            if wide is not kind:
                new(tape, "shares cast", (count,), kind)
            del picked
            tape.multiplied(count, vocabulary, width)
            if trained:
                tape.multiplied(vocabulary, count, width)
            if trained and is_thin(width, vocabulary, kind):
                scaled = new(tape, "inputs scaled", (count, width), kind)  # noqa: F841

    def run(node, grads, *found):
        zeros = [
            op.like(f"zeros for the {name}'s gradient", x) for name, x in zip(("input", "weight"), found, strict=False)
        ]
        del zeros
        return [*found, None][:2]

    record(out, "linear cross-entropy", run, [x, weight], [x.alias() for x in made])
    return out


def is_thin(width, vocabulary, type):
    """Whether a row of logits has no place for a row of inputs, which then takes its own."""
    return vocabulary * (2 if type.name in BITS16 else 1) < width
