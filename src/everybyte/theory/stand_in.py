"""PyTorch's names on the theory's tape: with them in PyTorch's place the source of `reference/` runs without PyTorch.

That source is the program of a step. With PyTorch it trains; here it says what is taken and when it is freed: the same Python
frames hold the same variables. What an operation makes, saves and frees stands in `operations`, how gradients come in
`autograd`. A tensor's `device` is its tape, so that a new tensor on it is recorded there.
"""

import sys
from types import ModuleType

from . import attention, autograd, experts, functions, losses
from . import operations as op
from .letters import over, product
from .tape import BOOL, COMPLEX, FP32, INT32, INT64, Storage
from .tensors import Tensor, contiguous_strides, new, several, view
from .unknown import Unknown, saving


def _title(tape, operation, depth=2):
    """The title of an operation; the code that called it is `depth` frames above."""
    return tape.naming(operation, sys._getframe(depth).f_code)


def _waited(x):
    """What other GPUs sent has come, so the tensor that was sent is freed."""
    x.sent = None


class Sizes(int):
    """A number of chunks that knows the size of each."""

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


def _titled(name, operation):
    """A method that calls an operation with its title as the last argument."""

    def method(x, *given, **options):
        return operation(x, *given, _title(x.tape, name), **options)

    return method


def _cast(name, *type):
    return _titled(name, lambda x, *given: op.cast(x, *type, *given))


def _gradless(name, shape=lambda x, *given: None, type=None):
    """A method whose backward is not on the tape. shape: of the result; None for the tensor's own."""

    def method(x, *given, **options):
        return _alone(x, name, _title(x.tape, name), shape(x, *given, **options), type)

    return method


def _activation(name, saves="input"):
    """A method whose operation has its own name for a title."""
    return lambda x, approximate="none": op.pointwise(x, name, saves)


def _alone(x, name, title, shape=None, type=None):
    """The result of an operation whose backward is not on the tape."""
    if autograd.wants_gradient(x.tape, x):
        raise NotImplementedError(f"{name}: its backward is not on the tape")
    return op.like(title, x, type) if shape is None else new(x.tape, title, shape, type or x.type)


def _compared(name):
    """A method that compares with a tensor or a number."""

    def method(x, y):
        return op.through(_title(x.tape, name), x, *[y] * isinstance(y, Tensor), type=BOOL)

    return method


def _add(x, y, title):
    if not isinstance(y, Tensor):
        return op.shift(x, title)
    with x.tape.turns(y.turn):
        return op.add(x, y, title)


def _sub(x, y, title):
    return op.subtract(x, y, title) if isinstance(y, Tensor) else op.shift(x, title)


def _mul(x, y, title):
    _waited(x)
    if not isinstance(y, Tensor):
        return op.scale(x, title)
    title, *names = title if isinstance(title, tuple) else (title, "", "")
    return op.multiply(x, y, title, names)


def _div(x, y, title):
    return op.divide(x, y, title) if isinstance(y, Tensor) else op.scale(x, title)


def _pow(x, exponent, title):
    return op.power(x, title)


def _matmul(x, y, title):
    title, *names = title if isinstance(title, tuple) else (title, "left", "right")
    return op.matmul(x, y, title, names)


def _reshape(x, *shape_and_title):
    *shape, title = shape_and_title
    _waited(x)
    return op.reshape(x, _shape(x, shape[0] if isinstance(shape[0], tuple) else shape), title)


def _radd(x, number, title):
    with x.tape.turns(x.turn):
        return op.shift(x, title)


class Methods:
    """The methods of PyTorch's tensors, and its functions whose first argument is a tensor."""

    device = property(lambda x: x.tape)
    dtype = property(lambda x: x.type)
    is_cpu = False

    # Views, copies.
    view, reshape = _titled("view", _reshape), _titled("reshape", _reshape)
    contiguous = _titled("contiguous", op.contiguous)
    repeat_interleave = _titled(
        "repeat_interleave", lambda x, groups, title, dim: attention.repeat_heads(x, groups, title, dim)
    )
    float, long, bool, int = _cast("float", FP32), _cast("long", INT64), _cast("bool", BOOL), _cast("int", INT32)
    to = _cast("to")
    type_as = _titled("type_as", lambda x, other, title: op.cast(x, other.type, title))

    # Number by number.
    __add__, __radd__, __sub__ = _titled("add", _add), _titled("add", _radd), _titled("sub", _sub)
    __mul__, __truediv__ = _titled("mul", _mul), _titled("div", _div)
    __matmul__ = matmul = _titled("matmul", _matmul)
    __rmul__ = _titled("mul", lambda x, number, title: op.scale(x, title))
    __neg__ = _titled("neg", op.scale)
    exp, square = _titled("exp", op.exponential), _titled("square", op.power)
    clamp = _titled("clamp", lambda x, least, most, title: op.clamp(x, title, least is not None))
    masked_fill = _titled("masked_fill", lambda x, mask, value, title: op.masked(x, mask, title))
    __gt__, __le__, __and__ = _compared("gt"), _compared("le"), _compared("and")
    cos, sin, pow = _gradless("cos"), _gradless("sin"), _titled("pow", _pow)
    __invert__, __rpow__, __floordiv__ = _gradless("not"), _gradless("pow"), _gradless("floor_divide")
    triu = _gradless("triu", lambda x, diagonal: x.shape)
    argmax = _gradless("argmax", lambda x, dim: x.shape[:-1], INT64)

    logsigmoid = _titled("logsigmoid", op.pointwise)  # on CUDA its buffer is empty: `log_sigmoid_forward_cuda`
    minimum, maximum = _titled("minimum", op.extreme), _titled("maximum", op.extreme)
    tanh, sigmoid = (_titled(name, lambda x, title: op.pointwise(x, title, "result")) for name in ("tanh", "sigmoid"))
    rsqrt, zeros_like = _titled("rsqrt", op.inverse_root), _titled("zeros_like", lambda x, title: op.like(title, x))
    empty_like = _gradless("empty_like", lambda x: x.shape)
    dropout = _titled("dropout", lambda x, p, training, title: op.dropout(x, p, title))
    gelu, silu, relu = _activation("gelu"), _activation("silu"), _activation("relu", "result")

    # Sums, rows, products.
    softmax = _titled("softmax", lambda x, title, dim, dtype=None: op.softmax(x, title, dtype=dtype))
    rms_norm = _titled("rms_norm", lambda x, shape, weight, eps, title: op.rms_norm(x, weight, title))
    linear = _titled("linear", lambda x, weight, title: op.linear(x, weight, None, title))
    grouped_mm = _titled("grouped_mm", lambda x, weight, title, offs: experts.grouped(x, weight, offs, title))
    log_softmax = _titled("log_softmax", lambda x, dim, title: op.log_softmax(x, title))
    gather = _titled("gather", lambda x, dim, index, title: op.gather(x, index, title))

    def requires_grad_(x):
        """A leaf from here on, unless autograd has its history."""
        x.node = x.node or autograd.Leaf(x)
        return x

    def size(x, axis=None):
        return x.shape if axis is None else x.shape[axis]

    def dim(x):
        return len(x.shape)

    def numel(x):
        return product(x.shape)

    def sum(x, dim=None, keepdim=False):
        return experts.summed(x, dim, keepdim, _title(x.tape, "sum"))

    def mean(x, dim=None, keepdim=False):
        title = _title(x.tape, "mean")
        return op.mean(x, title, () if dim is None else (*x.shape[:-1], 1))

    def transpose(x, a, b):
        return op.transpose(x, a % len(x.shape), b % len(x.shape))

    def permute(x, *axes):
        return functions.reordered(x, axes)

    def unsqueeze(x, axis):
        return op.unsqueezed(x, (slice(None),) * (axis % (len(x.shape) + 1)) + (None,))

    def squeeze(x, axis):
        return op.squeezed(x)

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

    def topk(x, number, dim, sorted=True):
        return experts.largest(x, number, _title(x.tape, "topk"))

    def max(x, dim, keepdim):
        return experts.largest(x, 1, _title(x.tape, "max"))

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

    def expand(x, *sizes):
        """A broadcast view; -1 keeps a size. Its backward adds up what each copy gets."""
        shape = tuple(own if type(n) is int and n == -1 else n for own, n in zip(x.shape, sizes, strict=True))
        strides = (0 if own == 1 and n != 1 else s for own, n, s in zip(x.shape, shape, x.strides, strict=True))
        out, title = view(x, shape, tuple(strides)), _title(x.tape, "expand")
        autograd.record(out, title, op.whole(f"{title} backward", x.shape), [x])
        return out

    def new_empty(x, *sizes):
        if sizes == (0,):
            return stored(x.tape, sizes, x.type)
        return new(x.tape, _title(x.tape, "new_empty"), sizes, x.type)

    def new_ones(x, sizes, dtype):
        return new(x.tape, _title(x.tape, "new_ones"), sizes, dtype)

    __itruediv__ = experts.divided

    def __getitem__(x, index):
        if isinstance(index, Tensor):
            _waited(x)
            return experts.indexed(x, index, _title(x.tape, "index"))
        return op.indexed(x, index if isinstance(index, tuple) else (index,))

    def __setitem__(x, index, values):
        """In place: nothing is taken; of a slice the gradient is."""
        if not isinstance(index, Tensor):
            attention.put(x, values, _title(x.tape, "setitem"))

    index_copy_ = fill_ = lambda x, *given: x  # in place: nothing is taken
    scatter_ = _titled("scatter_", lambda x, dim, index, source, title: experts.scattered(x, index, source, title))
    repeat = _titled("repeat", lambda x, times, one, title: experts.repeated(x, times, title))
    bmm = _titled("bmm", experts.batched)
    view_as_complex, view_as_real = (
        _titled("view_as_complex", attention.as_complex),
        _titled("view_as_real", attention.as_real),
    )
    full_like = _titled("full_like", lambda x, value, title: op.like(title, x))
    ones_like, polar = _gradless("ones_like"), _gradless("polar", lambda x, angle: x.shape, COMPLEX)
    floor, log1p, eq = _gradless("floor"), _gradless("log1p"), _compared("eq")
    flatten = _titled("flatten", lambda x, start, title: _reshape(x, *x.shape[:start], product(x.shape[start:]), title))

    def add_(x, y):
        return experts.increased(x, y, _title(x.tape, "add_")) if isinstance(y, Tensor) else x


for _name, _method in vars(Methods).items():
    if _name not in ("__module__", "__doc__", "__dict__", "__weakref__"):
        setattr(Tensor, _name, _method)


class Later:
    """A parameter or a buffer that is made before there is a tape."""

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
    """Eager attention's causal mask, a part of which is compared with 0."""

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
    """PyTorch's `nn.Module`; its network runs each call.

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
        if name.startswith("norm"):
            return f"norm {name[4:]}" if name[4:] else "last norm"
        return {"gate_up": "gate and up"}.get(name, name.replace("_", " "))

    def register_buffer(self, name, buffer, persistent=True):
        setattr(self, name, buffer)

    def add_module(self, name, module):
        setattr(self, name, module)

    def on(self, network, path=""):
        """Bind the module, and all modules in it, to a network."""
        self.network, self.path = network, path
        for name, value in list(vars(self).items()):
            here = f"{path}.{name}" if path else name
            if isinstance(value, Module):
                value.on(network, here)
            elif isinstance(value, Mask):
                value.tape = network.tape
            elif isinstance(value, Later):
                found = network.parameters.get(here.replace(".own.", "."))
                setattr(self, name, found or stored(network.tape, value.sizes, network.buffer))

    def modules(self):
        yield self
        for value in vars(self).values():
            if isinstance(value, Module):
                yield from value.modules()

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
    """One of PyTorch's own modules with a weight and perhaps a bias."""

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
    bias_last = False

    def enable_adapters(self, enabled):
        self.network.adapted = enabled

    def forward(self, x):
        return self.network.linear(self.path, x, self.title, self.bias_last)


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


def _filled(name):
    """A function that fills a tensor. Without a device it is made before there is a tape."""

    def make(*sizes, dtype=FP32, device=None):
        sizes = sizes[0] if sizes[:1] == ((),) else sizes
        return Later(*sizes) if device is None else new(device, _title(device, name), sizes, dtype)

    return make


def where(condition, x, other):
    """The numbers of `x` where a condition is true, and elsewhere one number, which is a tensor meanwhile."""
    number = new(x.tape, "the number elsewhere", (), x.type)  # noqa: F841
    return op.through(_title(x.tape, "where"), condition, x, type=x.type)


def cat(parts, dim):
    return op.join([x for x in parts if len(x.shape) > 1], dim, _title(parts[0].tape, "cat"))


def tensor(number, dtype=None, device=None):
    if device is None:
        return Later() if dtype is None else number
    return new(device, _title(device, "tensor"), (), INT64)


def pad(x, sizes, value):
    """So many more numbers before and after those of the last dimension."""
    return _alone(x, "pad", _title(x.tape, "pad"), (*x.shape[:-1], x.shape[-1] + sum(sizes)))


def cross_entropy(logits, targets, reduction="mean"):
    return logits.tape.network.split.cross_entropy(logits, targets)


def linear_cross_entropy(x, weight, targets, options):
    return losses.linear_cross_entropy(x, weight, x.tape.network.chunks)


def scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=True, scale=None, enable_gqa=False):
    return q.tape.network.flash(q, k, v, dropout_p, *[attn_mask] * (attn_mask is not None))


def checkpoint(function, *args, use_reentrant=False, context_fn=None):
    """Checkpoint a function. `context_fn` gives the operations that are saved and not recomputed, or a policy that says of which.

    A list of blocks is a segment. A tensor that stands for a chunk has the chunk's turn.
    """
    tensors = [x for x in args if isinstance(x, Tensor)]
    tape, network = tensors[0].tape, tensors[0].tape.network
    naming, turn = tape.naming, tensors[0].turn
    segment = isinstance(args[0], list) and not context_fn
    if segment:
        first = network.number(args[0][0].path)
        turn = network._place(first)[0]

    def run(*args):
        with tape.turns(turn), tape.within(naming=naming.again(), network=network):
            return function(*args)

    out = autograd.checkpoint(tape, run, *args, saves=context_fn and saving(context_fn()))
    out.turn = None if segment else turn
    return out


def all_to_all_single(x, received, sent, group):
    return experts.exchanged(x, x.shape[0] if received is None else received, _title(x.tape, "all_to_all_single"))


class _Module(ModuleType):
    """A module of PyTorch's. What it is not given by name is a tensor's method: `torch.pow(x)` is `x.pow()`."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return vars(Methods).get(name) or Unknown(f"{self.__name__}.{name}")


def no_grad():
    """A decorator: autograd does not record the function."""

    def decorated(function):
        def run(*args):
            tape = next(x.tape for x in args if isinstance(x, Tensor))
            with tape.within(grad=False):
                return function(*args)

        return run

    return decorated


def _module(name, **names):
    found = _Module(name)
    vars(found).update(names)
    return found


functional = _module(
    "torch.nn.functional", cross_entropy=cross_entropy, linear_cross_entropy=linear_cross_entropy, pad=pad,
    scaled_dot_product_attention=scaled_dot_product_attention,
)  # fmt: skip
nn = _module(
    "torch.nn", functional=functional, Module=Module, ModuleList=ModuleList, Linear=Linear, Embedding=Embedding,
    LayerNorm=LayerNorm, RMSNorm=RMSNorm, Identity=Identity, Parameter=lambda later: later,
)  # fmt: skip
#: It fills a tensor that is there.
distributed = _module("torch.distributed", all_to_all_single=lambda out, x, group: None)
torch = _module(
    "torch", nn=nn, distributed=distributed, autograd=_module("torch.autograd", Function=functions.Function), float32=FP32, int32=INT32, int64=INT64, bool=BOOL, arange=arange, cat=cat, empty=Later, no_grad=no_grad,
    ones=_filled("ones"), zeros=_filled("zeros"), tensor=tensor, where=where, tril=lambda x: Mask(),
)  # fmt: skip
#: What stands for each of PyTorch's modules.
MODULES = {
    "torch": torch,
    "torch.nn": nn,
    "torch.distributed._functional_collectives": _module(
        "_functional_collectives", all_to_all_single=all_to_all_single, all_to_all_single_autograd=all_to_all_single
    ),
    "torch.utils": _module(
        "torch.utils",
        checkpoint=_module(
            "torch.utils.checkpoint", checkpoint=checkpoint, create_selective_checkpoint_contexts=lambda of: of
        ),
    ),
}
