"""PyTorch's names on the theory's tape: with them in PyTorch's place the source of `reference/` runs without PyTorch.

That source is the program of a step. With PyTorch it trains; here it says what is taken and when it is freed: the same Python
frames hold the same variables. What an operation makes, saves and frees stands in `operations`, how gradients come in
`autograd`. A tensor's `device` is its tape, so that a new tensor on it is recorded there.
"""

import sys
from collections import Counter
from types import ModuleType

from . import autograd, experts, losses
from . import operations as op
from .letters import over, product
from .tape import BOOL, FP32, INT32, INT64, Storage
from .tensors import Tensor, contiguous_strides, new, several, view
from .titles import TITLES


class Naming:
    """What the operations in one call of a module are called, for people: by function and turn, as `TITLES` has them.

    Args:
        whose: the module's title, of those that have one.
    """

    def __init__(self, whose="", counts=()):
        self.whose, self.counts = whose, Counter(counts)

    def __call__(self, operation, code):
        where = code.co_qualname.partition(".<locals>")[0]
        turn = self.counts[where, operation]
        self.counts[where, operation] += 1
        known = TITLES.get(where, {}).get(operation, ())
        title = known[turn] if turn < len(known) else operation
        return title.format(self.whose) if isinstance(title, str) else title

    def again(self):
        """As it stands now, for what is run twice."""
        return Naming(self.whose, self.counts)


def _title(tape, operation, depth=2):
    """The title of an operation that the reference's source has just called, so many frames above."""
    return tape.naming(operation, sys._getframe(depth).f_code)


def _waited(x):
    """What other GPUs send has come: what was sent for it is freed."""
    x.sent = None


class Sizes(int):
    """A number of chunks that says how large each is."""

    def __new__(cls, sizes):
        self = super().__new__(cls, len(sizes))
        self.sizes = sizes
        return self


def _shape(x, shape):
    """A shape in which one size may be -1."""
    if not any(type(n) is int and n == -1 for n in shape):
        return tuple(shape)
    given = product([n for n in shape if not (type(n) is int and n == -1)])
    return tuple(over(product(x.shape), given) if type(n) is int and n == -1 else n for n in shape)


class Methods:
    """What PyTorch's tensors do."""

    device = property(lambda x: x.tape)
    dtype = property(lambda x: x.type)
    is_cpu = False

    def size(x, axis=None):
        return x.shape if axis is None else x.shape[axis]

    def dim(x):
        return len(x.shape)

    def numel(x):
        return product(x.shape)

    def view(x, *shape):
        _waited(x)
        shape = shape[0] if isinstance(shape[0], tuple) else shape
        return op.reshape(x, _shape(x, shape), _title(x.tape, "view"))

    def reshape(x, *shape):
        return op.reshape(x, _shape(x, shape), _title(x.tape, "reshape"))

    def transpose(x, a, b):
        return op.transpose(x, a % len(x.shape), b % len(x.shape))

    def unsqueeze(x, axis):
        return op.unsqueezed(x, (slice(None),) * (axis % (len(x.shape) + 1)) + (None,))

    def contiguous(x):
        return op.contiguous(x, _title(x.tape, "contiguous"))

    def split(x, sizes, dim):
        return op.split(x, tuple(sizes), dim, _title(x.tape, "split"))

    def chunk(x, number, dim=0):
        if not isinstance(number, Sizes):
            if int(x.shape[dim]) % number:
                raise NotImplementedError(
                    f"chunk: {x.shape[dim]:d} in {number} parts, which are not alike, is not on the tape"
                )
            return op.split(x, (over(x.shape[dim], number),) * number, dim, _title(x.tape, "chunk"))
        parts = op.split(x, number.sizes, dim, _title(x.tape, "chunk"))
        for i, part in enumerate(parts):
            part.turn = "chunk", i
        return parts

    def float(x):
        return op.cast(x, FP32, _title(x.tape, "float"))

    def long(x):
        return op.cast(x, INT64, _title(x.tape, "long"))

    def bool(x):
        return op.cast(x, BOOL, _title(x.tape, "bool"))

    def int(x):
        return op.cast(x, INT32, _title(x.tape, "int"))

    def type_as(x, other):
        return op.cast(x, other.type, _title(x.tape, "type_as"))

    def to(x, type):
        return op.cast(x, type, _title(x.tape, "to"))

    def repeat_interleave(x, groups, dim):
        return op.repeat_heads(x, groups, _title(x.tape, "repeat_interleave"))

    def masked_fill(x, mask, value):
        return op.masked(x, mask, _title(x.tape, "masked_fill"))

    def sum(x, dim, keepdim=False):
        return experts.summed(x, dim, keepdim, _title(x.tape, "sum"))

    def mean(x, dim, keepdim):
        return _without_gradient(x, "mean", (*x.shape[:-1], 1))

    def pow(x, exponent):
        return _without_gradient(x, "pow")

    def sigmoid(x):
        return _without_gradient(x, "sigmoid")

    def topk(x, number, dim):
        return experts.largest(x, number)

    def argmax(x, dim):
        return _without_gradient(x, "argmax", x.shape[:-1], INT64)

    def gather(x, dim, index):
        return _without_gradient(x, "gather", index.shape)

    def expand(x, *sizes):
        """Repeated without a copy: where a size is -1 it stays."""
        shape = tuple(own if type(n) is int and n == -1 else n for own, n in zip(x.shape, sizes, strict=True))
        strides = (0 if own == 1 and n != 1 else s for own, n, s in zip(x.shape, shape, x.strides, strict=True))
        if autograd.wants_gradient(x.tape, x):
            raise NotImplementedError("expand: its backward is not on the tape")
        return view(x, shape, tuple(strides))

    def new_empty(x, *sizes):
        if sizes == (0,):
            return stored(x.tape, sizes, x.type)
        return new(x.tape, _title(x.tape, "new_empty"), sizes, x.type)

    def new_ones(x, sizes, dtype):
        return new(x.tape, _title(x.tape, "new_ones"), sizes, dtype)

    def __gt__(x, y):
        return _through(x, y, "gt")

    def __le__(x, y):
        return _through(x, y, "le")

    def __and__(x, y):
        return _through(x, y, "and")

    def __invert__(x):
        return _without_gradient(x, "not")

    def triu(x, diagonal):
        return new(x.tape, _title(x.tape, "triu"), x.shape, x.type)

    def cos(x):
        return op.scale(x, _title(x.tape, "cos"))

    def sin(x):
        return op.scale(x, _title(x.tape, "sin"))

    def __neg__(x):
        return op.scale(x, _title(x.tape, "neg"))

    def __rpow__(x, base):
        return op.scale(x, _title(x.tape, "pow"))

    def __truediv__(x, divisor):
        return op.scale(x, _title(x.tape, "div"))

    def __floordiv__(x, divisor):
        return op.scale(x, _title(x.tape, "floor_divide"))

    def __itruediv__(x, total):
        return experts.divided(x, total)

    def __add__(x, y):
        title = _title(x.tape, "add")
        if not isinstance(y, Tensor):
            return op.shift(x, title)
        with x.tape.turns(y.turn):
            return op.add(x, y, title)

    def __radd__(x, number):
        with x.tape.turns(x.turn):
            return op.shift(x, _title(x.tape, "add"))

    def __sub__(x, y):
        title = _title(x.tape, "sub")
        return op.subtract(x, y, title) if isinstance(y, Tensor) else op.shift(x, title)

    def __rmul__(x, number):
        return op.scale(x, _title(x.tape, "mul"))

    def __mul__(x, y):
        _waited(x)
        title = _title(x.tape, "mul")
        if not isinstance(y, Tensor):
            return op.scale(x, title)
        title, *names = title if isinstance(title, tuple) else (title, "", "")
        return op.multiply(x, y, title, names)

    def __matmul__(x, y):
        title = _title(x.tape, "matmul")
        title, *names = title if isinstance(title, tuple) else (title, "left", "right")
        return op.matmul(x, y, title, names)

    def __getitem__(x, index):
        if isinstance(index, Tensor):
            _waited(x)
            return experts.indexed(x, index, _title(x.tape, "index"))
        return op.indexed(x, index if isinstance(index, tuple) else (index,))

    def __setitem__(x, index, values):
        """In place: nothing is taken."""

    add_ = index_copy_ = scatter_ = lambda x, *given: x  # these too


for _name, _method in vars(Methods).items():
    if _name not in ("__module__", "__doc__", "__dict__", "__weakref__"):
        setattr(Tensor, _name, _method)


def _without_gradient(x, name, shape=None, type=None):
    """What an operation makes whose backward is not on the tape."""
    if autograd.wants_gradient(x.tape, x):
        raise NotImplementedError(f"{name}: its backward is not on the tape")
    title = _title(x.tape, name, 3)
    return op.like(title, x, type) if shape is None else new(x.tape, title, shape, type or x.type)


def _through(x, y, name):
    """What a comparison makes."""
    return op.through(_title(x.tape, name, 3), x, *[y] * isinstance(y, Tensor), type=BOOL)


class Later:
    """What is made before there is a tape: a parameter, or a buffer of the module, of so many numbers."""

    def __init__(self, *sizes):
        self.sizes = sizes

    def view(self, *shape):
        return self

    def size(self, axis):
        return 1

    def __truediv__(self, other):
        return self

    float = clone = lambda self: self
    __rtruediv__ = __rpow__ = __truediv__


class Mask(Later):
    """Eager attention's triangle, of which a part is compared with 0."""

    def __init__(self, sizes=()):
        self.sizes, self.tape = sizes, None

    def __getitem__(self, places):
        found = Mask(tuple(place.stop for place in places if place.stop is not None))
        found.tape = self.tape
        return found

    def __eq__(self, zero):
        return new(self.tape, _title(self.tape, "eq"), self.sizes, BOOL)

    __hash__ = object.__hash__


# Modules.


class Module:
    """PyTorch's `nn.Module`, whose calls a network runs.

    Attributes:
        network: whose it is. path: where it stands there.
    """

    network, path = None, ""

    def __init__(self):
        self.training = True

    @property
    def title(self):
        """Its name in words."""
        name = self.path.rpartition(".")[2]
        return {"norm": "last norm", "norm1": "norm 1", "norm2": "norm 2", "gate_up": "gate and up"}.get(
            name, name.replace("_", " ")
        )

    def register_buffer(self, name, buffer, persistent=True):
        setattr(self, name, buffer)

    def add_module(self, name, module):
        setattr(self, name, module)

    def on(self, network, path=""):
        """Have it, and all that is in it, run on a network."""
        self.network, self.path = network, path
        for name, value in list(vars(self).items()):
            here = f"{path}.{name}" if path else name
            if isinstance(value, Module):
                value.on(network, here)
            elif isinstance(value, Mask):
                value.tape = network.tape
            elif isinstance(value, Later):
                found = network.parameters.get(here.replace(".own.", "."))
                setattr(self, name, found or stored(network.tape, value.sizes))

    def __call__(self, *args):
        return self.network.run(self, *args)


class ModuleList(Module):
    def __init__(self, modules=()):
        super().__init__()
        for i, module in enumerate(modules):
            self.add_module(str(i), module)

    def get_submodule(self, name):
        return vars(self)[name]

    def __iter__(self):
        return iter([module for module in vars(self).values() if isinstance(module, Module)])

    def __len__(self):
        return len(list(iter(self)))


class Leaf(Module):
    """A module of PyTorch's own, with a weight and perhaps a bias."""

    def __init__(self, *sizes, **options):
        super().__init__()
        self.normalized_shape = self.eps = None

    @property
    def weight(self):
        return self.network and self.network.parameters[f"{self.path}.weight"]

    @weight.setter
    def weight(self, other):
        """Shared: the network knows."""

    @property
    def bias(self):
        return self.network.parameters.get(f"{self.path}.bias")


def stored(tape, shape, type=FP32, pieces=()):
    """A tensor that stands before the step."""
    return Tensor(shape, contiguous_strides(shape), Storage(tape, pieces), type)


class Linear(Leaf):
    def forward(self, x):
        return self.network.linear(self.path, x, self.title)


class Embedding(Leaf):
    def forward(self, tokens):
        return self.network.split.embedding(tokens, self.weight, self.path)


class LayerNorm(Leaf):
    def forward(self, x):
        return op.layer_norm(x, self.weight, self.bias, self.title)


class RMSNorm(Leaf):
    def forward(self, x):
        return op.rms_norm(x, self.weight, self.title)


class Identity(Module):
    def __call__(self, x):
        return x


# Functions.


def arange(start, end=None, step=1, dtype=INT64, device=None):
    if device is None:
        return Later(over(end, step))
    if end is None:
        count = start
    elif type(start) is int and step > 1:
        count = over(end, step)
    else:  # from any place so many on
        count = end - start
    return new(device, _title(device, "arange"), (count,), dtype)


def ones(*sizes, dtype=FP32, device=None):
    return Later(*sizes) if device is None else new(device, _title(device, "ones"), sizes, dtype)


def topk(x, number, dim, sorted=True):
    return experts.largest(x, number)


def sort(x):
    _waited(x)
    made = several(x.tape, _title(x.tape, "sort"), (x.shape, INT64), (x.shape, INT64))
    x.tape.by("sort")
    return made


def histc(x, bins, min, max):
    return new(x.tape, _title(x.tape, "histc"), (bins,), x.type)


def cumsum(x, dim, dtype=None):
    made = new(x.tape, _title(x.tape, "cumsum"), x.shape, dtype or x.type)
    x.tape.by("scan")
    return made


def empty_like(x):
    return new(x.tape, _title(x.tape, "empty_like"), x.shape, x.type)


def cat(parts, dim):
    return op.join([x for x in parts if len(x.shape) > 1], dim, _title(parts[0].tape, "cat"))


def zeros(*sizes, dtype=FP32, device=None):
    return Later(*sizes) if device is None else new(device, _title(device, "zeros"), sizes, dtype)


def tensor(number, dtype=None, device=None):
    return number if device is None else new(device, _title(device, "tensor"), (), INT64)


def linear(x, weight):
    return op.linear(x, weight, None, _title(x.tape, "linear"))


def dropout(x, probability, training):
    return op.dropout(x, probability, _title(x.tape, "dropout"))


def _activation(name, saves="input"):
    return lambda x, approximate="none": op.activation(x, name, saves)


def softmax(x, dim):
    return op.softmax(x, _title(x.tape, "softmax"))


def rms_norm(x, shape, weight, eps):
    return op.rms_norm(x, weight, _title(x.tape, "rms_norm"))


def grouped_mm(rows, weight, offs):
    return experts.grouped(rows, weight, offs, _title(rows.tape, "grouped_mm"))


def cross_entropy(logits, targets, reduction="mean"):
    return logits.tape.network.split.cross_entropy(logits, targets)


def linear_cross_entropy(x, weight, targets, options):
    return losses.linear_cross_entropy(x, weight, x.tape.network.chunks)


def scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=True, scale=None, enable_gqa=False):
    return q.tape.network.flash(q, k, v, dropout_p, *[attn_mask] * (attn_mask is not None))


def checkpoint(function, *args, use_reentrant=False, context_fn=None):
    """Run a function and keep nothing that its operations save but where `context_fn` says so.

    A list of blocks is a segment; what stands for a chunk has its turn.
    """
    tensors = [x for x in args if isinstance(x, Tensor)]
    tape, network = tensors[0].tape, tensors[0].tape.network
    naming, turn = tape.naming, tensors[0].turn
    segment = isinstance(args[0], list) and not context_fn
    if segment:
        first = network.number(args[0][0].path)
        turn = "segment", network.starts.index(first)

    def run(*args):
        with tape.turns(turn), tape.within(naming=naming.again(), network=network):
            return function(*args)

    out = autograd.checkpoint(tape, run, *args, keeps=("matmul", "attention") if context_fn else ())
    out.turn = None if segment else turn
    return out


def all_to_all_single(x, received, sent, group):
    return experts.exchanged(x, x.shape[0] if received is None else received, _title(x.tape, "all_to_all_single"))


class Unknown:
    """A name of PyTorch's that is not here: a file may mention it, and a program that gives it a tensor is refused."""

    def __init__(self, name):
        self._name = name

    def __call__(self, *args, **options):
        if any(isinstance(x, Tensor) for x in (*args, *options.values())):
            raise NotImplementedError(
                f"{self._name}: the tape has no such operation; add it to {__name__}, or use one that is there"
            )
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Unknown(f"{self._name}.{name}")


class _Module(ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Unknown(f"{self.__name__}.{name}")


def _named(name):
    return lambda x: _without_gradient(x, name)


def _module(name, **names):
    found = _Module(name)
    vars(found).update(names)
    return found


functional = _module(
    "torch.nn.functional", dropout=dropout, gelu=_activation("gelu"), silu=_activation("silu"),
    relu=_activation("relu", "result"), linear=linear, softmax=softmax, rms_norm=rms_norm, grouped_mm=grouped_mm, cross_entropy=cross_entropy,
    linear_cross_entropy=linear_cross_entropy, scaled_dot_product_attention=scaled_dot_product_attention,
)  # fmt: skip
nn = _module(
    "torch.nn", functional=functional, Module=Module, ModuleList=ModuleList, Linear=Linear, Embedding=Embedding,
    LayerNorm=LayerNorm, RMSNorm=RMSNorm, Identity=Identity, Parameter=lambda later: later,
)  # fmt: skip
torch = _module(
    "torch", nn=nn, float32=FP32, int32=INT32, bool=BOOL, arange=arange, ones=ones, tril=lambda x: Mask(),
    tensor=tensor, empty=Later, zeros=zeros, rsqrt=_named("rsqrt"), tanh=_named("tanh"), pow=Methods.pow, cat=cat, topk=topk, sort=sort, histc=histc, cumsum=cumsum,
    empty_like=empty_like, zeros_like=_named("zeros_like"), no_grad=lambda: lambda function: function,
)  # fmt: skip
#: What stands for each of PyTorch's modules.
MODULES = {
    "torch": torch,
    "torch.nn": nn,
    "torch.distributed._functional_collectives": _module(
        "_functional_collectives", all_to_all_single=all_to_all_single, all_to_all_single_autograd=all_to_all_single
    ),
    "torch.utils": _module("torch.utils", checkpoint=_module("torch.utils.checkpoint", checkpoint=checkpoint)),
}
