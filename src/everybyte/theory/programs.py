"""The reference's models on a tape: their own source, run with `stand_in` in PyTorch's place."""

import builtins
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import resolve_name
from pathlib import Path
from types import CodeType, ModuleType

from ..ask.choices import DTYPE_BYTES
from ..catalog.decoders import decoder
from ..catalog.weights import adapters, layers, learned
from . import operations as op
from . import stand_in
from .attention import scaled_dot_product_attention
from .autograd import Parameter
from .tape import FP32, Storage, Type
from .tensor_parallel import Undivided
from .tensors import contiguous_strides
from .titles import Naming

_PACKAGE = __package__.rpartition(".")[0]
_REFERENCE = f"{_PACKAGE}.reference."
#: Linear layers that tensor parallelism splits by rows: what each GPU makes is a part of a sum.
ROWS = ("out", "down")


def _import(name, globals=None, locals=None, fromlist=(), level=0):
    """Python's import for the reference's source: `torch` is the stand-in, and the reference's own modules run on it too."""
    whole = resolve_name("." * level + name, globals["__package__"]) if level else name
    if whole.startswith(_REFERENCE):
        return source(whole.removeprefix(_REFERENCE))
    if whole.partition(".")[0] == "torch":
        return stand_in.MODULES.get(whole, stand_in.torch)
    return builtins.__import__(name, globals, locals, fromlist, level)


@cache
def source(name: str) -> ModuleType:
    """A module of `reference/`, run with the tape's names in PyTorch's place; `name`: such as "gpt", or "mesh.mixture"."""
    path = Path(__file__).resolve().parents[1] / "reference" / f"{name.replace('.', '/')}.py"
    code = SourceFileLoader(_REFERENCE + name, str(path)).get_code(_REFERENCE + name)
    assert code is not None
    return running(name, code)


def running(name: str, code: CodeType) -> ModuleType:
    """The module of a name, as compiled, run with the tape's names in PyTorch's place."""
    module = ModuleType(_REFERENCE + name)
    vars(module).update(
        __package__=module.__name__.rpartition(".")[0], __builtins__=vars(builtins) | {"__import__": _import}
    )
    exec(code, vars(module))  # noqa: S102  the package's own
    return module


def family(name: str):
    """The class of the models of a family."""
    file, kind = {"gpt": ("gpt", "GPT"), "llama": ("llama", "Llama")}[name]
    return getattr(source(file), kind)


class _Traced:
    """A model or a setup with some fields replaced, unchecked."""

    def __init__(self, of, **instead):
        self._of = of
        vars(self).update(instead)

    def __getattr__(self, name):
        return getattr(self._of, name)


class Network:
    """A model on a tape: its parameters, and its forward.

    Args:
        tape: records. model: a model's fields, dimensions as letters. setup: a Setup. blocks: how many blocks there are in
            each segment; one segment where none is checkpointed. chunks: tokens in each chunk of the loss. type: the data
            type of the weights in forward. beside: where adapters train, (their rank, their data type). split: how matrices
            are divided among GPUs, a `TensorParallel`; the model's fields are then those of one of them. experts: where
            several GPUs divide these, `Experts`. dense: how many blocks, the first, have a dense MLP where others have experts.
    """

    #: Modules that belong to the loss.
    losses: tuple[str, ...] = ("head", "loss")
    #: Whether adapters are switched on.
    adapted = True
    #: Blocks that stand in one turn of a loop; the data type of buffers.
    every, buffer = 1, FP32
    #: Its units, where FSDP divides it.
    sharding = None

    def __init__(self, tape, model, setup, blocks, chunks, type, beside=None, split=None, experts=None, dense=0):
        self.split, self.experts, self.dense = split or Undivided(), experts, dense
        self.every = max(self.every, setup.cycle)
        self.tape, self.model, self.setup, self.type = tape, model, setup, type
        self.segments, self.chunks = blocks, chunks
        self.starts = [sum(blocks[:i]) for i in range(len(blocks))]
        self.turns = {f"blocks.{i}": self._place(i)[-1] for i in range(sum(blocks))}
        self.parameters, self.frozen, self.quantized = {}, setup.adapters is not None, setup.quantization != "none"
        self.enter, self.leave = (lambda path, args: args), (lambda path, out: out)
        self.flash = scaled_dot_product_attention
        of = {group: [w for w in learned(model) if w.group == group and w.count] for group in layers(model)}
        trained = adapters(model, beside[0], setup.adapters.takes) if beside else []
        for weight in of["embeddings"]:
            self._add(weight.name, weight.shape)
        for i in range(sum(blocks)):
            for name, shape in self._named(self.weights_of(of, i)):
                self._add(f"blocks.{i}.{name}", shape, self._place(i))
            for weight in trained:
                self._add(f"blocks.{i}.{weight.name}", weight.shape, self._place(i), beside[1])
        for weight in of["last"]:
            self._add(weight.name, weight.shape)
        if model.tied:
            self.parameters["head.weight"] = self.parameters["token.weight"]
        self.module = self._built(
            _Traced(model, layers=sum(blocks), dense_layers=dense),
            _Traced(
                setup, segment=blocks[0] * bool(setup.segment), loss_chunks=stand_in.Sizes(chunks),
                check_model=lambda model: None,
            ),
        )  # fmt: skip

    def _built(self, model, setup):
        """The reference's module, bound to this network."""
        module = source("saving.blocks").checkpointed(family(model.family)(model, setup), setup)
        if self.experts:
            self.experts.into(module, model)
        module.on(self)
        return module

    def weights_of(self, of, number):
        """The weights of one block, out of each group's."""
        return of["block"] + of["mixture" if self.model.experts and number >= self.dense else "dense"]

    def _place(self, number):
        """The place of a block: its segment, if there are any, and its turn there."""
        if self.every > 1 or self.dense:
            return (("block", number // self.every),)
        segment = max(i for i, start in enumerate(self.starts) if start <= number)
        return (("segment", segment),) * bool(self.setup.segment) + (("block", number - self.starts[segment]),)

    @property
    def casts(self):
        """The part that copies of weights in another type belong to; what FSDP gathers is no weight."""
        return None if self.sharding else "casts"

    @staticmethod
    def _named(found):
        """(name, shape) of each weight: norms of one group are numbered on."""
        for weight in found:
            for more in range(int(weight.count)):
                yield weight.name.replace("norm2", f"norm{2 + more}"), weight.shape

    def _add(self, name, shape, place=(), adapter=None):
        shape = self.experts.shape(name, shape) if self.experts else shape
        strides, frozen = contiguous_strides(shape), self.frozen and not adapter
        self.parameters[name] = Parameter(
            name, shape, strides, Storage(self.tape, ()), adapter or self.type, place, frozen, self.split.divides
        )

    @staticmethod
    def number(path):
        """A block's number, by its path."""
        return int(path.rpartition(".")[2])

    # Calls of modules.

    def forward(self, *inputs):
        """Tokens and targets (B, S) in, loss out; optionally the position of each token (S,)."""
        return self.module(*inputs)

    def run(self, module, *args):
        """Call a module of the reference. Its arguments live until it returns."""
        path, tape = module.path, self.tape
        before = tape.naming, tape.network
        tape.naming, tape.network = Naming(module.title), self
        try:
            with tape.turns(self.turns.get(path)):
                args = self.split.entering(path, args)
                return self.call(path, module.forward, *args, loss=path in self.losses or None)
        finally:
            tape.naming, tape.network = before

    def call(self, path, function, *args, loss=None):
        """Call a function as the module at a path."""
        with self.tape.module(path, loss):
            args = self.enter(path, args)
            out = self.split.leaving(path, function(*args))
            return self.leave(path, out)

    def linear(self, path, x, title, bias_last=False):
        """A linear layer's product, with an adapter where there is one beside it."""
        adapted = self.adapted and f"{path}.lora_A.weight" in self.parameters
        return self._adapted(path, x, title) if adapted else self._linear(path, x, title, bias_last)

    def _linear(self, path, x, title, bias_last=False):
        weight, bias = self.parameters[f"{path}.weight"], self.parameters.get(f"{path}.bias")
        if self.quantized and path.startswith("blocks.") and ".lora_" not in path:
            return op.linear_4bit(x, weight.shape[0], self.tape.compute, title)
        return op.linear(x, weight, bias, title, self.split.divides and path.rpartition(".")[2] in ROWS, bias_last)

    def _adapted(self, path, x, title):
        """Source: peft, tuners/lora/layer.py, `Linear.forward`, line by line."""
        if self.quantized:
            return self._adapted_4bit(path, x, title)
        result = self.call(path, lambda x: self._linear(path, x, title), x)
        kind = result.type
        x = op.cast(x, self.parameters[f"{path}.lora_A.weight"].type, f"{title}: input for A")
        result = op.add(result, self._beside(path, x, title), f"{title}: sum")
        return op.cast(result, kind, f"{title}: sum cast")

    def _adapted_4bit(self, path, x, title):
        """Source: peft, tuners/lora/bnb.py, `Linear4bit.forward`, line by line."""
        result = op.copied(self.call(path, lambda x: self._linear(path, x, title), x), f"{title}: copied")
        converts = not self.tape.autocast
        if converts:
            x = op.cast(x, self.parameters[f"{path}.lora_A.weight"].type, f"{title}: input for A")
        output = self._beside(path, x, title)
        if converts:
            output = op.cast(output, result.type, f"{title}: adapter cast")
        return op.add(result, output, f"{title}: sum")

    def _beside(self, path, x, title):
        """What an adapter adds: B A x, scaled."""
        inner, outer = f"{path}.lora_A", f"{path}.lora_B"
        return op.scale(
            self.call(
                outer, lambda x: self._linear(outer, x, f"{title}: B"),
                self.call(
                    inner, lambda x: self._linear(inner, x, f"{title}: A"),
                    op.dropout(x, self.setup.adapters.dropout, f"{title}: input for A"),
                ),
            ),
            f"{title}: adapter scaled",
        )  # fmt: skip


class Transformers(Network):
    """One of Hugging Face's decoders, with its loss, on a tape."""

    def __init__(self, tape, model, setup, *given, **options):
        self.every, self.buffer = model.period, Type(setup.base_dtype, DTYPE_BYTES[setup.base_dtype])
        super().__init__(tape, model, setup, *given, **options)

    def _built(self, model, setup):
        module = source("hugging_face.decoders").DECODERS[decoder(model)](model).trained(model, setup)
        module.loss = source("hugging_face.training").CausalLoss()
        module.on(self)
        return module

    def forward(self, *inputs):
        return source("hugging_face.training").loss_of(self.module, *inputs)
