"""Decoders as programs of operations: what a step runs forward, read off a `Model`'s features.

The programs are the book's reference models line by line (`reference/gpt.py`, `llama.py`), because a variable that is
rebound, and a function that returns, free what they held: here as there.
"""

from ..catalog.weights import adapters, layers, weights
from . import operations as op
from .autograd import Parameter, checkpoint
from .letters import over
from .tape import BOOL, FP32, INT64, Storage
from .tensor_parallel import Undivided
from .tensors import contiguous_strides, new

#: Linear layers that tensor parallelism splits by rows: what each GPU makes is a part of a sum.
ROWS = ("out", "down")


class Network:
    """A model on a tape: its parameters, and its forward.

    Args:
        tape: records. model: a model's fields, dimensions as letters. setup: a Setup. blocks: how many blocks there are in
            each segment; one segment where none is checkpointed. chunks: tokens in each chunk of the loss. type: the data
            type of the weights in forward. beside: where adapters train, (their rank, their data type). split: how matrices
            are divided among GPUs, a `TensorParallel`; the model's fields are then those of one of them.
    """

    def __init__(self, tape, model, setup, blocks, chunks, type, beside=None, split=None):
        self.split = split or Undivided()
        self.tape, self.model, self.setup, self.type = tape, model, setup, type
        self.segments, self.chunks = blocks, chunks
        self.parameters, self.frozen, self.quantized = {}, setup.adapters is not None, setup.quantization != "none"
        self.enter, self.leave = (lambda path, args: args), (lambda path, out: out)
        self.flash = op.scaled_dot_product_attention
        of = {group: [w for w in weights(model) if w.group == group and w.count] for group in layers(model)}
        per_block = of["block"] + (of["mixture"] if model.experts else of["dense"])
        trained = adapters(model, beside[0], setup.adapters.takes) if beside else []
        for weight in of["embeddings"]:
            self._add(weight.name, weight.shape)
        places = [
            ((("segment", s),) if setup.segment else ()) + (("block", b),)
            for s, n in enumerate(blocks)
            for b in range(n)
        ]
        for i, place in enumerate(places):
            for weight in per_block:
                self._add(f"blocks.{i}.{weight.name}", weight.shape, place)
            for weight in trained:
                self._add(f"blocks.{i}.{weight.name}", weight.shape, place, beside[1])
        for weight in of["last"]:
            self._add(weight.name, weight.shape)
        if model.tied:
            self.parameters["head.weight"] = self.parameters["token.weight"]

    def _add(self, name, shape, place=(), adapter=None):
        strides, frozen = contiguous_strides(shape), self.frozen and not adapter
        self.parameters[name] = Parameter(
            name, shape, strides, Storage(self.tape, ()), adapter or self.type, place, frozen, self.split.divides
        )

    def weight(self, path):
        """A module's weight and bias; None for a bias that it lacks."""
        return self.parameters[f"{path}.weight"], self.parameters.get(f"{path}.bias")

    def call(self, path, function, *args, loss=None):
        """Call a module: its arguments live until it returns, whatever it does with them."""
        with self.tape.module(path, loss):
            args = self.enter(path, args)
            out = function(*args)
            return self.leave(path, out)

    def linear(self, path, x, title, loss=None):
        """Call a linear layer, with an adapter where there is one beside it."""
        layer = self._adapted if f"{path}.lora_A.weight" in self.parameters else self._linear
        return self.call(path, lambda x: layer(path, x, title), x, loss=loss)

    def _linear(self, path, x, title):
        if self.quantized and path.startswith("blocks.") and ".lora_" not in path:
            return op.linear_4bit(x, self.parameters[f"{path}.weight"].shape[0], self.tape.compute, title)
        if path.rpartition(".")[2] in ROWS:
            out = op.linear(x, *self.weight(path), title, self.split.divides)
            return self.split.leave(out, title)
        return op.linear(x, *self.weight(path), title)

    def _adapted(self, path, x, title):
        """Source: peft, tuners/lora/layer.py, `Linear.forward`, line by line."""
        if self.quantized:
            return self._adapted_4bit(path, x, title)
        result = self.call(path, lambda x: self._linear(path, x, title), x)
        kind, (inner, outer) = result.type, (f"{path}.lora_A", f"{path}.lora_B")
        x = op.cast(x, self.parameters[f"{inner}.weight"].type, f"{title}: input for A")
        result = op.add(
            result,
            op.scale(
                self.call(
                    outer, lambda x: self._linear(outer, x, f"{title}: B"),
                    self.call(inner, lambda x: self._linear(inner, x, f"{title}: A"), self._dropped(x, title)),
                ),
                f"{title}: adapter scaled",
            ),
            f"{title}: sum",
        )  # fmt: skip
        return op.cast(result, kind, f"{title}: sum cast")

    def _adapted_4bit(self, path, x, title):
        """Source: peft, tuners/lora/bnb.py, `Linear4bit.forward`, line by line."""
        result = op.copied(self.call(path, lambda x: self._linear(path, x, title), x), f"{title}: copied")
        inner, outer, converts = f"{path}.lora_A", f"{path}.lora_B", not self.tape.autocast
        if converts:
            x = op.cast(x, self.parameters[f"{inner}.weight"].type, f"{title}: input for A")
        output = op.scale(
            self.call(
                outer, lambda x: self._linear(outer, x, f"{title}: B"),
                self.call(inner, lambda x: self._linear(inner, x, f"{title}: A"), self._dropped(x, title)),
            ),
            f"{title}: adapter scaled",
        )  # fmt: skip
        if converts:
            output = op.cast(output, result.type, f"{title}: adapter cast")
        return op.add(result, output, f"{title}: sum")

    def _dropped(self, x, title):
        """What A is given. Source: peft, `LoraLayer.update_layer`: an `nn.Dropout`, or without dropout an `nn.Identity`."""
        return op.dropout(x, self.setup.adapters.dropout, f"{title}: input for A")

    def norm(self, path, x, title):
        """Call a norm."""
        if self.model.norm == "layernorm":
            return self.call(path, lambda x: op.layer_norm(x, *self.weight(path), title), x)
        return self.call(path, lambda x: self._rms_norm(path, x, title), x)

    def _rms_norm(self, path, x, title):
        weight, _ = self.weight(path)
        if self.model.norm_offset:
            weight = op.shift(weight, f"{title}: 1 + weight")
        return op.rms_norm(x, weight, title)

    # The whole.

    def forward(self, tokens, targets, positions=None):
        """Tokens in, loss out; where each token stands is given, or its place in the sequence."""
        return self.call("", self._forward, tokens, targets, positions)

    def _forward(self, tokens, targets, positions):
        tape, model = self.tape, self.model
        others = ()
        if model.family == "gpt":
            if positions is None:
                positions = new(tape, "positions", (tokens.shape[1],), INT64)
            x = op.dropout(
                op.add(self.embedding("token", tokens), self.embedding("position", positions), "embedding"),
                self.setup.dropout,
                "embedding",
            )
        else:
            x = self.embedding("token", tokens)
            if model.scaled_embedding:
                x = op.scale(x, "embedding scaled")
            others = rotary_embedding(tape, tokens.shape[1], model.head_width)
        x = self._blocks(x, *others)
        if self.setup.loss == "chunked":
            return self.call("loss", self._chunked_loss, self.norm("norm", x, "last norm"), targets, loss=True)
        if self.setup.loss == "linear-cross-entropy":
            return self.call("loss", self._linear_cross_entropy, self.norm("norm", x, "last norm"), targets, loss=True)
        return self.call("loss", self._loss, self.head(self.norm("norm", x, "last norm")), targets, loss=True)

    def embedding(self, path, tokens):
        """Call a table."""
        look_up = self.split.embedding if self.split.divides else op.embedding
        return self.call(path, lambda tokens: look_up(tokens, self.parameters[f"{path}.weight"], path), tokens)

    def head(self, x):
        """Call the output head."""
        if self.split.divides:
            whole = self.split.enter(x, "head input")
            return self.call("head", lambda x: self.split.logits(self._linear("head", x, "head")), whole, loss=True)
        return self.linear("head", x, "head", loss=True)

    def _loss(self, logits, targets):
        rows = logits.shape[0] * logits.shape[1]
        logits = op.reshape(logits, (rows, logits.shape[2]), "logits")
        if self.split.divides:
            return self.split.cross_entropy(logits, op.reshape(targets, (rows,), "targets"))
        return op.cross_entropy(logits, targets)

    def _linear_cross_entropy(self, x, targets):
        flat = op.reshape(x, (x.shape[0] * x.shape[1], x.shape[2]), "rows")
        return op.linear_cross_entropy(flat, self.parameters["head.weight"], self.chunks)

    def _chunked_loss(self, x, targets):
        tape, sizes, tokens = self.tape, self.chunks, x.shape[0] * x.shape[1]

        def loss_of(index, x, targets):
            with tape.turn("chunk", index):
                return op.cross_entropy(self.head(x), targets)

        flat, flat_targets = op.reshape(x, (tokens, x.shape[2]), "chunks"), op.reshape(targets, (tokens,), "targets")
        parts = zip(op.split(flat, sizes, 0, "chunks"), op.split(flat_targets, sizes, 0, "chunks"), strict=True)
        losses = [checkpoint(tape, loss_of, i, *part) for i, part in enumerate(parts)]
        return op.scale(op.total(losses, "sum of the chunks' losses"), "loss")

    # Blocks.

    def _blocks(self, x, *others):
        tape, setup = self.tape, self.setup

        def run(first, count, x):
            for i in range(count):
                with tape.turn("block", i):
                    x = one(first + i, x)
            return x

        def block(i, x):
            return self.call(f"blocks.{i}", self.block, i, x, *others)

        def kept(i, x):
            return checkpoint(tape, block, i, x, keeps=("matmul", "attention"))

        one = kept if setup.checkpointing == "operations" else block
        if not setup.segment:
            return run(0, self.segments[0], x)
        first = 0
        for segment, count in enumerate(self.segments):
            with tape.turn("segment", segment):
                x = checkpoint(tape, run, first, count, x)
            first += count
        return x

    def block(self, i, x, *others):
        """Attention and MLP, each on a normed copy of the residual stream and added back to it."""
        path = f"blocks.{i}"
        x = op.add(
            x, self._attention(f"{path}.attention", self.norm(f"{path}.norm1", x, "norm 1"), *others), "residual 1"
        )
        return op.add(x, self._mlp(f"{path}.mlp", self.norm(f"{path}.norm2", x, "norm 2")), "residual 2")

    def _attention(self, path, x, *others):
        attention = self._plain_attention if self.model.family == "gpt" else self._grouped_attention
        whole = self.split.enter(x, "attention input")
        return self.call(path, lambda x, *others: attention(path, x, *others), whole, *others)

    def _plain_attention(self, path, x):
        model, (batch, sequence, width) = self.model, x.shape
        width = self.split.inner(width)
        heads = batch, sequence, model.heads, model.head_width
        if model.fused:
            q, k, v = op.split(self.linear(f"{path}.qkv", x, "qkv"), (width,) * 3, 2, "gradients")
        else:
            q, k, v = (self.linear(f"{path}.{name}", x, name) for name in "qkv")
        q = op.transpose(op.reshape(q, heads, "q"), 1, 2)
        k = op.transpose(op.reshape(k, heads, "k"), 1, 2)
        v = op.transpose(op.reshape(v, heads, "v"), 1, 2)
        y = self._attend(q, k, v)
        y = op.reshape(op.contiguous(op.transpose(y, 1, 2), "heads merged"), (batch, sequence, width), "heads")
        return op.dropout(self.linear(f"{path}.out", y, "out"), self.setup.dropout, "out")

    def _grouped_attention(self, path, x, cos, sin):
        model, (batch, sequence, _) = self.model, x.shape
        queries = batch, sequence, model.heads, model.head_width
        keys = batch, sequence, model.kv_heads, model.head_width
        made = self._projected(path, x, (queries, keys, keys))
        q = op.transpose(rotate(self._heads(path, next(made), "q", queries), cos, sin, "q"), 1, 2)
        k = op.transpose(rotate(self._heads(path, next(made), "k", keys), cos, sin, "k"), 1, 2)
        v = op.transpose(self._heads(path, next(made), "v", keys), 1, 2)
        y = self._attend(q, k, v)
        merged = batch, sequence, model.heads * model.head_width
        return self.linear(f"{path}.out", op.reshape(op.transpose(y, 1, 2), merged, "heads merged"), "out")

    def _projected(self, path, x, heads):
        """Query, key and value, one after another: as each is asked for, or where they are fused as views of one tensor."""
        if self.model.fused:
            widths = [heads * width for *_, heads, width in heads]
            return iter(op.split(self.linear(f"{path}.qkv", x, "qkv"), widths, 2, "gradients"))
        return (self.linear(f"{path}.{name}", x, name) for name in "qkv")

    def _heads(self, path, x, name, shape):
        found = op.reshape(x, shape, name)
        if self.model.qk_norm and name != "v":
            found = self.norm(f"{path}.{name}_norm", found, f"{name} norm")
        return found

    def _attend(self, q, k, v):
        if self.setup.attention == "flash":
            attend = self.flash
        else:
            attend = self._plain_scores if self.model.family == "gpt" else self._grouped_scores
        return checkpoint(self.tape, attend, q, k, v) if self.setup.checkpointing == "selective" else attend(q, k, v)

    def _plain_scores(self, q, k, v):
        scores = op.scale(op.matmul(q, op.transpose(k, 2, 3), "scores", ("q", "k")), "scaled scores")
        sequence = q.shape[2]
        scores = op.masked(scores, new(self.tape, "causal mask", (sequence, sequence), BOOL), "masked scores")
        weights = op.dropout(op.softmax(scores, "softmax"), self.setup.dropout, "weights")
        return op.matmul(weights, v, "heads", ("weights", "v"))

    def _grouped_scores(self, q, k, v):
        groups = over(self.model.heads, self.model.kv_heads)
        k, v = (op.repeat_heads(x, groups, name) for name, x in (("k", k), ("v", v)))
        scores = op.scale(op.matmul(q, op.transpose(k, 2, 3), "scores", ("q", "k")), "scaled scores")
        square = q.shape[2], q.shape[2]
        everywhere = new(self.tape, "all positions", square, BOOL)
        future = new(self.tape, "causal mask", square, BOOL)
        del everywhere
        return op.matmul(
            op.cast(op.softmax(op.masked(scores, future, "masked scores"), "softmax"), v.type, "weights cast"),
            v, "heads", ("weights", "v"),
        )  # fmt: skip

    def _mlp(self, path, x):
        whole = self.split.enter(x, "MLP input")
        if self.model.experts:
            from .experts import mixture

            return self.call(path, lambda x: self.split.leave(mixture(self, path, x), "experts"), whole)
        return self.call(path, lambda x: self._gated(path, x) if self.model.gated else self._plain(path, x), whole)

    def _plain(self, path, x):
        saves = "result" if self.model.activation == "relu" else "input"
        return op.dropout(
            self.linear(
                f"{path}.down",
                op.activation(self.linear(f"{path}.up", x, "up"), self.model.activation.removesuffix("_tanh"), saves),
                "down",
            ),
            self.setup.dropout,
            "down",
        )

    def _gated(self, path, x):
        activation = self.model.activation.removesuffix("_tanh")
        names = "product backward, to the gate", "product backward, to up"
        if self.model.fused:
            gate, up = op.split(
                self.linear(f"{path}.gate_up", x, "gate and up"), (self.model.ffn_width,) * 2, 2, "gradients"
            )
            return self.linear(
                f"{path}.down", op.multiply(op.activation(gate, activation), up, "product", names), "down"
            )
        return self.linear(
            f"{path}.down",
            op.multiply(
                op.activation(self.linear(f"{path}.gate", x, "gate"), activation),
                self.linear(f"{path}.up", x, "up"),
                "product",
                names,
            ),
            "down",
        )


def rotary_embedding(tape, sequence, head_width):
    """Cosine and sine by which each position turns the pairs of a head. Source: Su et al. 2021, arXiv:2104.09864."""
    pairs = over(head_width, 2)
    exponents = new(tape, "pairs", (pairs,), FP32)
    exponents = new(tape, "fractions", (pairs,), FP32)
    exponents = new(tape, "exponents", (pairs,), FP32)
    speeds = new(tape, "speeds", (pairs,), FP32)  # noqa: F841  lives as long as the function
    del exponents
    positions = new(tape, "positions", (sequence,), FP32)
    angles = new(tape, "angles", (sequence, 1, pairs), FP32)
    del positions
    return new(tape, "cosines", angles.shape, FP32), new(tape, "sines", angles.shape, FP32)


def rotate(x, cos, sin, name):
    """Each pair (a, b) of a head's numbers turned, to (a cos - b sin, b cos + a sin), in fp32."""
    pairs = over(x.shape[-1], 2)
    a, b = op.split(op.cast(x, FP32, f"{name} in fp32"), (pairs, pairs), -1, f"{name} gradient")
    turned = op.join(
        (
            op.subtract(op.multiply(a, cos, f"{name}: a cos"), op.multiply(b, sin, f"{name}: b sin"), f"{name}: first"),
            op.add(op.multiply(b, cos, f"{name}: b cos"), op.multiply(a, sin, f"{name}: a sin"), f"{name}: second"),
        ),
        f"{name} turned",
    )
    return op.cast(turned, x.type, f"{name} turned in 16 bits")
