"""Tensor parallelism as a pass: what one of `parts` GPUs holds of each matrix, and what collectives take for themselves.

Weights are split as `everybyte/reference/splitting.py` has PyTorch split them: by columns before attention's heads and the MLP's units, by
rows after them, tables and head by the vocabulary. So heads, units and vocabulary of a network are those of one GPU, and
what is added here is what stands at the borders: where tokens are gathered, where sums over GPUs are made.

Sources, in PyTorch's `torch/distributed/tensor`: `placement_types.py` (`Shard._to_replicate_tensor`, `_reduce_shard_tensor`,
`_MaskPartial`), `parallel/loss.py`, `_ops/_embedding_ops.py`; `torch/distributed/_functional_collectives.py`.
"""

from . import losses
from . import operations as op
from .autograd import record, save
from .letters import over, product
from .tape import BOOL, FP32, INT64
from .tensors import new, view


class Undivided:
    """Each GPU has whole matrices: nothing is gathered, nothing summed."""

    divides = False

    embedding, cross_entropy = staticmethod(op.embedding), staticmethod(losses.cross_entropy)

    def moves(self, name):
        """Whether a weight's gradient must be redistributed before it is used."""
        return False

    def gradient_shape(self, weight):
        """The shape of a weight's gradient, as backward leaves it."""
        return weight.shape

    def entering(self, path, args):
        """What a module is given."""
        return args

    def leaving(self, path, out):
        """What a module gives."""
        return out


class TensorParallel:
    """Each GPU has a part of each matrix.

    Args:
        parts: how many there are. mesh: whether what stands between split modules is divided by tokens, and whether logits stay
            divided by the vocabulary. sequence: tokens in all. whole: the model's fields, undivided.
    """

    divides = True

    def __init__(self, parts, mesh, sequence, whole):
        self.parts, self.sequence, self.experts, self.tied = parts, sequence, whole.experts > 0, whole.tied
        self.by_tokens, self.by_words = mesh.sequence_parallel, mesh.loss_parallel
        self.rows = {"token": whole.vocabulary, "position": whole.learned_positions}

    def moves(self, name):
        """Whether a weight's gradient is of another kind than the weight, and must be redistributed before it is used.

        A norm's is a sum over this GPU's tokens or heads alone, a router's over its part of each expert; a table's has all rows, as
        DTensor knows no other way.
        """
        path = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
        if path == "token" and self.tied:
            return False  # cut already, to be added to the head's
        norm = path.endswith("_norm") or (path.startswith("norm") and self.by_tokens)
        return norm or path == "router" or path in self.rows

    def gradient_shape(self, weight):
        """The shape of a weight's gradient, as backward leaves it."""
        whole = self.rows.get(weight.name.removesuffix(".weight"))
        return (whole, *weight.shape[1:]) if whole is not None and self.moves(weight.name) else weight.shape

    # Collectives.

    def _gather(self, x, axis, whole, title):
        """All GPUs' parts along one dimension: they arrive one after another, and are copied into order where need be."""
        arrived = new(x.tape, f"{title} gathered", (self.parts * x.shape[0], *x.shape[1:]), x.type)
        shape = (*x.shape[:axis], whole, *x.shape[axis + 1 :])
        if product(x.shape[:axis]) == 1:
            return view(arrived, shape, arrived.strides)
        return new(x.tape, f"{title} in order", shape, x.type)

    def _scatter(self, x, axis, title):
        """The sum over GPUs, of which each has a part along one dimension."""
        ordered = new(x.tape, f"{title} in order", x.shape, x.type) if axis else None
        shape = (*x.shape[:axis], over(x.shape[axis], self.parts), *x.shape[axis + 1 :])
        kind = "_c10d_functional.reduce_scatter_tensor"
        out = x.tape.kernel(kind, lambda: new(x.tape, f"{title} scattered", shape, x.type))
        del ordered
        return out

    def _sum(self, x, title):
        """The sum over GPUs, on each."""
        return new(x.tape, f"{title} summed", x.shape, x.type)

    # Borders.

    def entering(self, path, args):
        """What a module is given: of those that are split by columns all tokens."""
        name = path.rpartition(".")[2]
        if name.startswith("norm") or name.endswith("_norm"):
            return self._wrapped(args[0], name), *args[1:]
        title = {"attention": "attention input", "mlp": "MLP input", "head": "head input"}.get(name)
        return args if title is None else (self.enter(args[0], title), *args[1:])

    @staticmethod
    def _wrapped(x, name):
        """A norm's input as a `DTensor`: its gradient passes a node of its own, so that the weight's has been added before."""
        out = view(x, x.shape, x.strides)
        record(out, f"{name} input", lambda node, grads: [grads[0]], [x])
        return out

    def leaving(self, path, out):
        """What a module gives: of those that are split by rows a sum over GPUs."""
        name = path.rpartition(".")[2]
        if name in ("out", "down"):
            return self.leave(out, name)
        if name == "mlp" and self.experts:
            return self.leave(out, "experts")
        return self.logits(out) if path == "head" else out

    def enter(self, x, title):
        """All tokens, where each GPU has some; their gradient is a sum over GPUs."""
        out = self._gather(x, 1, self.sequence, title) if self.by_tokens else view(x, x.shape, x.strides)

        def run(node, grads, *_):
            named = f"{title} gradient"
            return [self._scatter(grads[0], 1, named) if self.by_tokens else self._sum(grads[0], named)]

        node = record(out, f"{title} whole", run, [x])
        if node is not None:
            node.spread = True  # query, key and value each have a gradient for it
        return out

    def leave(self, x, title, axis=1):
        """The sum over GPUs, of which each has all tokens or some."""
        whole = x.shape[axis]
        out = self._scatter(x, axis, title) if self.by_tokens else self._sum(x, title)

        def run(node, grads, *_):
            return [self._gather(grads[0], axis, whole, f"{title} gradient") if self.by_tokens else grads[0]]

        record(out, f"{title} summed", run, [x])
        return out

    def embedding(self, tokens, table, path):
        """A table's rows, of which each GPU has some: other words' are 0, and summed with those that have them."""
        rows = self._rows(tokens, table, path)
        return self.leave(rows, path, len(tokens.shape) - 1)

    def _rows(self, tokens, table, path):
        tape = table.tape
        mask, index = self._own(tokens, f"{path}: whose")
        saved = save(tape, [table], tokens)
        out = new(tape, f"{path} rows", (*tokens.shape, table.shape[1]), table.type)
        del mask, index
        gradient = op.whole(f"{path} gradient", (self.rows[path], table.shape[1]))
        node = record(out, f"{path} rows", gradient, [table], saved)
        if node is not None:
            node.spread = True
        return out

    def _own(self, words, title):
        """Which words are not this GPU's, and their numbers among its own. Source: `_MaskPartial._mask_tensor`."""
        tape = words.tape
        below = new(tape, f"{title}: below", words.shape, BOOL)
        above = new(tape, f"{title}: above", words.shape, BOOL)
        mask = new(tape, f"{title}: mask", words.shape, BOOL)
        del below, above
        copy = new(tape, f"{title}: copy", words.shape, INT64)
        index = new(tape, f"{title}: index", words.shape, INT64)
        del copy
        return mask, index

    # The loss.

    def logits(self, x):
        """The head's result: divided still, or gathered."""
        if self.by_words:
            return x
        axis = len(x.shape) - 1
        out = self._gather(x, axis, self.rows["token"], "logits")
        record(out, "logits gathered", op.whole("logits gradient, own part", x.shape), [x])
        return out

    def cross_entropy(self, logits, targets):
        """`losses.cross_entropy`, of logits that are divided unless they have been gathered."""
        if not self.by_words:
            return losses.cross_entropy(logits, targets)
        out = self._log_softmax(logits)
        record(out, "log-softmax", lambda node, grads, *_: [grads[0]], [logits], results=[out])
        return self._negative_log_likelihood(out, targets)

    def _log_softmax(self, x):
        tape, rows = x.tape, (x.shape[0], 1)
        narrow = x.type.name != "fp32"
        wide = new(tape, "logits in fp32", x.shape, FP32) if narrow else x
        most = new(tape, "largest logits", rows, FP32)
        most = self._sum(most, "largest logits")
        shifted = new(tape, "shifted logits", x.shape, FP32)
        powers = new(tape, "exponentials", x.shape, FP32)
        total = new(tape, "sums of exponentials", rows, FP32)
        del powers
        total = self._sum(total, "sums of exponentials")
        logarithm = new(tape, "logarithms", rows, FP32)
        result = new(tape, "log-softmax", x.shape, FP32)
        out = new(tape, "log-softmax cast", x.shape, x.type) if narrow else result
        del wide, most, shifted, total, logarithm, result
        return out

    def _negative_log_likelihood(self, log_p, targets):
        tape, kind = log_p.tape, log_p.type
        column = targets.shape[0], 1
        saved = save(tape, [log_p], log_p, targets)
        known = new(tape, "targets that count", targets.shape, BOOL)
        safe = new(tape, "targets", targets.shape, INT64)
        del known
        mask, index = self._own(view(safe, column, safe.strides), "targets: whose")
        found = new(tape, "log-likelihoods", column, kind)
        del mask
        summed = self._sum(found, "log-likelihoods")
        result = new(tape, "negative log-likelihoods", targets.shape, kind)
        known = new(tape, "targets that count", targets.shape, BOOL)
        result = new(tape, "losses", targets.shape, kind)
        del known
        known = new(tape, "targets that count", targets.shape, BOOL)
        number = new(tape, "number of targets", (), INT64)
        del known
        weight = new(tape, "weight", (), kind)
        del number
        mean = new(tape, "sum of the losses", (), kind)
        loss = new(tape, "loss", (), kind)
        del safe, index, found, summed, result, mean
        record(loss, "negative log-likelihood", self._backward, [log_p], saved, [weight])
        return loss

    def _backward(self, node, grads, log_p, targets, *_):
        """Of the likelihood and the log-softmax at once. Source: `_nll_loss_and_log_softmax_backward`."""
        tape, kind = log_p.tape, log_p.type
        rows, column = targets.shape, (targets.shape[0], 1)
        grad = new(tape, "gradient of one token", (), kind)
        known = new(tape, "targets that count", rows, BOOL)
        safe = new(tape, "targets", rows, INT64)
        del known
        made = new(tape, "gradient of ones", log_p.shape, kind)
        mask, index = self._own(safe, "targets: whose")
        own = new(tape, "own targets", rows, kind)
        own = new(tape, "own targets, less one", rows, kind)
        places = new(tape, "places", rows, INT64)
        known = new(tape, "targets that count", rows, BOOL)
        grad = new(tape, "gradients of tokens", column, kind)
        del known
        powers = new(tape, "exponentials", log_p.shape, kind)
        total = new(tape, "gradient unscaled", log_p.shape, kind)
        del powers
        out = new(tape, "negative log-likelihood backward", log_p.shape, kind)
        del grad, safe, made, mask, index, own, places, total
        return [out]
