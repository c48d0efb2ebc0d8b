"""What PyTorch's operations make, what they save for backward, and what their backward makes: each once.

An operation takes tensors and gives a tensor. Its backward is a function of (node, gradients) that gives the gradients of
its inputs; what it reads it saved (`tools/autograd/derivatives.yaml` says which and in which order). Under autocast
(`aten/src/ATen/autocast_mode.h`) an operation casts its inputs first, the last one first: the casts are arguments of one call,
and GCC, which PyTorch's wheels for Linux are built with, evaluates those from the right. Its list is named where it applies.
"""

from itertools import zip_longest

from ..catalog.weights import NF4_BLOCK
from .autograd import Parameter, record, save, wants_gradient
from .letters import least, over, product, up
from .tape import BITS16, BOOL, FP32
from .tensors import (
    is_contiguous,
    new,
    reshaped,
    several,
    strides_like,
    strides_of_joined,
    strides_through,
    transposed,
    view,
)  # fmt: skip


def like(name, x, type=None, part=None):
    """A tensor laid out as `x`."""
    return new(x.tape, name, x.shape, type or x.type, strides_like(x), part)


def through(name, x, *others, type=None):
    """The result of an elementwise operation on `x` and `others`, which are broadcast."""
    shape = x.shape
    for other in others:
        pairs = zip_longest(reversed(shape), reversed(other.shape), fillvalue=1)
        shape = tuple(b if a == 1 else a for a, b in pairs)[::-1]
    return new(x.tape, name, shape, type or x.type, strides_through(shape, x, *others))


def whole(name, shape):
    """A backward that makes one tensor of a shape."""
    return lambda node, grads, *_: [new(grads[0].tape, name, shape, grads[0].type)]


def alike(name):
    """A backward that makes one tensor as the gradient that comes."""
    return lambda node, grads, *_: [like(name, grads[0])]


# Views: nothing is taken, but backward may have to copy.


def reshape(x, shape, title):
    """The same elements in another shape: a view where one exists, else a copy. Source: `at::reshape`."""
    before, name = x.shape, f"{title} copied"
    out = reshaped(x, shape, name)
    record(out, title, lambda node, grads: [reshaped(grads[0], before, f"{title} gradient copied")], [x])
    return out


def transpose(x, a, b, title=""):
    """A view with two dimensions swapped."""
    out = transposed(x, a, b)
    record(out, title, lambda node, grads: [transposed(grads[0], a, b)], [x])
    return out


def contiguous(x, title):
    """A contiguous copy, or the tensor itself where it is contiguous."""
    if is_contiguous(x):
        return x
    out = new(x.tape, title, x.shape, x.type)
    record(out, title, lambda node, grads: [grads[0]], [x])
    return out


def split(x, sizes, axis, title):
    """Views that divide `x` along one dimension. Backward concatenates their gradients, a copy."""
    axis %= len(x.shape)

    def run(node, grads):
        return [new(x_tape, f"{title} joined", shape, kind, strides_of_joined(grads, shape))]

    x_tape, shape, kind, found, node, start = x.tape, x.shape, x.type, [], None, 0
    for i, size in enumerate(sizes):
        part = list(x.shape)
        part[axis] = size
        found.append(view(x, tuple(part), x.strides))
        node = record(found[-1], title, run, [x], slot=i, node=node)
        start += int(size)
    if node is not None:
        node.slots = len(found)
    return found


def cut(x, size, title):
    """A view of the first `size` elements of the last dimension. Backward pads its gradient with zeros."""
    out = view(x, (*x.shape[:-1], size), x.strides)
    record(out, title, whole(f"{title} backward", x.shape), [x])
    return out


def indexed(x, index):
    """`x[index]` for slices, integers, None and an ellipsis: one view after another."""
    if ... in index:
        place = index.index(...)
        named = sum(i is not None for i in index) - 1
        index = index[:place] + (slice(None),) * (len(x.shape) - named) + index[place + 1 :]
    axis = 0
    for place in index:
        if isinstance(place, slice):
            if place != slice(None):
                x = sliced(x, axis, place)
            axis += 1
        elif place is not None:  # one of them: a slice of one, whose dimension goes
            x = sliced(x, axis, slice(place, None if place == -1 else place + 1))
            x = view(x, (*x.shape[:axis], *x.shape[axis + 1 :]), (*x.strides[:axis], *x.strides[axis + 1 :]))
    kept = tuple(i for i in index if i is None or isinstance(i, slice))
    return unsqueezed(x, tuple(None if i is None else slice(None) for i in kept)) if None in kept else x


def sliced(x, axis, place):
    """A slice of one dimension, a view. Backward writes its gradient into zeros."""
    size, strides = x.shape[axis], list(x.strides)
    if place.step:  # of as many alike, each its first, or its second
        size, strides[axis] = over(size, place.step), strides[axis] * place.step
    elif place.start is not None and place.start < 0:
        size = 1 if place.start == -1 else least(size, -place.start)
    elif place.stop is not None:
        size = (size - -place.stop if place.stop < 0 else place.stop) - (place.start or 0)
    elif place.start:
        size = size - place.start
    out = view(x, (*x.shape[:axis], size, *x.shape[axis + 1 :]), tuple(strides))
    record(out, "sliced", whole("slice backward", x.shape), [x])
    return out


def unsqueezed(x, index):
    """A view with a dimension of size 1 wherever `index` has None."""
    before, places = x.shape, [i for i, place in enumerate(index) if place is None]
    shape, strides = list(x.shape), list(x.strides)
    for i in places:
        shape.insert(i, 1)
        strides.insert(i, 1)
    out = view(x, tuple(shape), tuple(strides))

    def run(node, grads):
        kept = [n for i, n in enumerate(grads[0].strides) if i not in places]
        return [view(grads[0], before, tuple(kept))]

    record(out, "unsqueezed", run, [x])
    return out


def squeezed(x):
    """A view without the last dimension, whose size is 1."""
    before = x.shape
    out = view(x, x.shape[:-1], x.strides[:-1])
    record(out, "squeezed", lambda node, grads: [view(grads[0], before, (*grads[0].strides, 1))], [x])
    return out


# Number by number.


def cast(x, type, title, part=None):
    """A copy in another data type, or the tensor itself where it has that type."""
    if x.type.name == type.name:
        return x
    before = x.type
    out = like(title, x, type, part or (x.tape.network.casts if isinstance(x, Parameter) else None))
    record(out, title, lambda node, grads: [like(_back(title), grads[0], before)], [x])
    return out


def _back(title):
    """The title of a cast's backward."""
    return title.replace(" cast", " gradient cast") if title.endswith(" cast") else f"{title} backward"


def lowered(x, title):
    """The activation in 16 bits, as autocast gives it to a matrix product."""
    tape = x.tape
    return cast(x, tape.autocast, title) if tape.autocast and x.type.name == "fp32" else x


def lowered_weight(x, title):
    """The weight in 16 bits, as autocast gives it to a matrix product: cast once, and cached until autocast ends.

    A frozen weight is cast for each product: the cache takes only weights that require a gradient (`autocast_mode.cpp`, `cached_cast`).
    """
    tape = x.tape
    if not tape.autocast or x.type.name != "fp32":
        return x
    if x.node is None:
        return cast(x, tape.autocast, title)
    if x.name not in tape.casts:
        tape.casts[x.name] = cast(x, tape.autocast, title)
    return tape.casts[x.name]


def raised(x, title):
    """The tensor in fp32, as autocast gives it to an operation on its fp32 list."""
    return cast(x, FP32, title) if x.tape.autocast and x.type.name in BITS16 else x


def widest(*tensors):
    """The data type of a result of several tensors. PyTorch promotes bool to integers, integers to 16 bits, 16 bits to fp32."""
    ranks = {"bool": 0, "int32": 1, "int64": 2, "fp32": 4}
    return max((x.type for x in tensors), key=lambda type: ranks.get(type.name, 3))


def add(x, y, title):
    """A sum, in the wider of the two types."""
    out = through(title, x, y, type=widest(x, y))
    record(out, title, lambda node, grads: [grads[0], grads[0]], [x, y])
    return out


def subtract(x, y, title):
    """A difference, in the wider of the two types. Backward negates the gradient for the second."""
    out = through(title, x, y, type=widest(x, y))

    def run(node, grads):
        return [grads[0], through(f"{title}: negated", grads[0]) if node.edges[1] else None]

    record(out, title, run, [x, y])
    return out


def multiply(x, y, title, names=("", "")):
    """An elementwise product, broadcast. Each factor is saved where the other requires a gradient."""
    to_x, to_y = wants_gradient(x.tape, x), wants_gradient(x.tape, y)
    saved = save(x.tape, [x, y], *[y] * to_x, *[x] * to_y)
    out = through(title, x, y, type=widest(x, y))

    def run(node, grads, *read):
        first = through(names[0] or f"{title} backward", grads[0], read[0]) if to_x else None
        return [first, through(names[1] or f"{title} backward", grads[0], read[-1]) if to_y else None]

    record(out, title, run, [x, y], saved)
    return out


def divide(x, y, title):
    """A quotient. The divisor requires no gradient and is saved."""
    if wants_gradient(x.tape, y):
        raise NotImplementedError("div: the gradient of its divisor is not on the tape")
    saved = save(x.tape, [x], y)
    out = through(title, x, y, type=widest(x, y))
    record(out, title, lambda node, grads, y: [through(f"{title} backward", grads[0], y)], [x], saved)
    return out


def extreme(x, y, title):
    """The elementwise minimum or maximum. Saves both. Source: `minimum` and `maximum` in derivatives.yaml."""
    saved = save(x.tape, [x, y], x, y)
    out = through(title, x, y)

    def run(node, grads, x, y):

        def share(name):
            half = through(f"{title}: half, {name}", grads[0])  # noqa: F841
            equal = through(f"{title}: equal, {name}", x, y, type=BOOL)  # noqa: F841
            made = through(f"{title} backward, {name}", grads[0])
            other = through(f"{title}: other, {name}", x, y, type=BOOL)  # noqa: F841
            return made

        second = share("second")
        return [share("first"), second]

    record(out, title, run, [x, y], saved)
    return out


def scale(x, title, type=None):
    """A product with a Python number. Nothing is saved."""
    out = through(title, x, type=type)
    record(out, title, lambda node, grads: [through(f"{title} backward", grads[0])], [x])
    return out


def shift(x, title):
    """A sum with a Python number. Nothing is saved."""
    out = through(title, x)
    record(out, title, lambda node, grads: [grads[0]], [x])
    return out


def join(parts, axis, title):
    """Tensors concatenated along one dimension, in the widest of their types. Their gradients are views of its gradient. Source: `at::cat`."""
    first, axis = parts[0], axis % len(parts[0].shape)
    shape = *first.shape[:axis], sum(part.shape[axis] for part in parts), *first.shape[axis + 1 :]
    out = new(first.tape, title, shape, widest(*parts), strides_of_joined(parts, shape))
    shapes = [part.shape for part in parts]
    record(out, title, lambda node, grads: [view(grads[0], shape, grads[0].strides) for shape in shapes], parts)
    return out


def pointwise(x, title, saves="input", scratch=()):
    """An elementwise function that saves its `input`, as GELU and SiLU do, or its `result`, as ReLU does.

    scratch: tensors that live while its backward runs: (name, type or None for the gradient's, whether it is one number).
    """
    saved = save(x.tape, [x], x) if saves == "input" else ()
    out = through(title, x)

    def run(node, grads, read):
        held = [
            new(read.tape, f"{title}: {name}", () if alone else read.shape, type or grads[0].type)
            for name, type, alone in scratch
        ]
        made = through(f"{title} backward", grads[0], read)
        del held
        return [made]

    record(out, title, run, [x], saved, [] if saved else [out])
    return out


def exponential(x, title):
    """Saves its result. On autocast's fp32 list."""
    return pointwise(raised(x, f"{title} input cast"), title, "result")


def clamp(x, title, below=True):
    """Saves its input. below: whether it has a least value too. Source: `clamp_backward` in `FunctionsManual.cpp`."""
    ends = ("above", "below")[: 1 + below]
    return pointwise(x, title, scratch=(("zero", None, True), *((end, BOOL, False) for end in ends)))


def power(x, title):
    """A power. Saves its input. On autocast's fp32 list. Source: `pow_backward` in `FunctionsManual.cpp`."""
    wide = raised(x, f"{title} input cast")
    return pointwise(wide, title, scratch=(("power", None, False), ("times the exponent", None, False)))


def inverse_root(x, title):
    """Saves its result. On autocast's fp32 list. Source: `rsqrt` in derivatives.yaml."""
    wide = raised(x, f"{title} input cast")
    return pointwise(wide, title, "result", (("gradient scaled", None, False), ("cube", None, False)))


def mean(x, title, shape=()):
    """The mean of all elements, or of each row. Backward makes one tensor of the input's shape."""
    out = new(x.tape, title, shape, x.type)
    record(out, title, whole(f"{title} backward", x.shape), [x])
    return out


def dropout(x, probability, title):
    """Saves a mask of one byte an element. Source: `native/Dropout.cpp`, `native_dropout`."""
    if not probability:
        return x
    out, mask = several(x.tape, f"{title} dropout", (x.shape, x.type, strides_like(x)), (x.shape, BOOL))
    record(out, f"{title} dropout", alike(f"{title} dropout backward"), [x], results=[mask])
    return out


def masked(x, mask, title):
    """Minus infinity where the mask is true. Saves the mask."""
    saved = save(x.tape, [x], mask)
    out = like(title, x)
    record(out, title, alike("mask backward"), [x], saved)
    return out


# Norms, tables, softmax.


def layer_norm(x, weight, bias, title):
    """Saves its input (B, S, H), and the mean and inverse standard deviation of each token, in fp32."""
    bias = None if bias is None else raised(bias, f"{title} bias cast")
    weight = raised(weight, f"{title} weight cast")
    wide = raised(x, f"{title} input cast")
    inputs = [wide, weight, bias]
    rows, saved = (*x.shape[:-1], 1), save(x.tape, inputs, wide, weight, *[bias] * (bias is not None))
    out, mean, deviation = several(x.tape, title, (x.shape, wide.type), (rows, FP32), (rows, FP32))
    gains = [(w.shape, w.type) for w in (weight, bias) if w is not None]

    def run(node, grads, x, *_):
        wanted = [form for edge, form in zip(node.edges, ((x.shape, x.type), *gains), strict=False) if edge is not None]
        made = iter(several(x.tape, f"{title} backward", *wanted))
        x.tape.by("norm backward", product(rows), gains[0][0][0], len(gains))
        return [next(made) if edge is not None else None for edge in node.edges]

    record(out, title, run, inputs, saved, [mean, deviation])
    return out


def rms_norm(x, weight, title):
    """Saves its input (B, S, H), and the inverse root mean square of each token, in fp32."""
    weight = raised(weight, f"{title} weight cast")
    wide = raised(x, f"{title} input cast")
    deviation = new(x.tape, f"{title} statistics", (*x.shape[:-1], 1), FP32)
    saved = save(x.tape, [wide, weight], wide, weight, deviation)
    out = like(title, wide)
    gain = weight.shape, weight.type

    def run(node, grads, x, *_):
        to_x = like(f"{title} backward", x) if node.edges[0] else None
        if to_x:
            x.tape.by("norm backward", product(x.shape[:-1]), gain[0][0], 1)
        return [to_x, new(x.tape, f"{title} weight gradient", *gain) if node.edges[1] else None]

    record(out, title, run, [wide, weight], saved)
    return out


def embedding(tokens, table, title):
    """Rows of a table (V, H). Its gradient is a whole table."""
    saved = save(table.tape, [table], tokens)
    out = new(table.tape, f"{title} rows", (*tokens.shape, table.shape[1]), table.type)
    shape, count = table.shape, product(tokens.shape)

    def run(node, grads, *_):
        made = new(grads[0].tape, f"{title} gradient", shape, grads[0].type)
        made.tape.by("table backward", count, *shape)
        return [made]

    record(out, f"{title} rows", run, [table], saved)
    return out


def gather(x, index, title):
    """One element of each row. Saves table and index. Backward writes into a new table of zeros.

    Source: `gather_backward` in `native/TensorAdvancedIndexing.cpp`.
    """
    saved = save(x.tape, [x], x, index)
    out = new(x.tape, title, index.shape, x.type)
    record(out, title, whole(f"{title} backward", x.shape), [x], saved)
    return out


def _over_scores(x, title, cast_title, spare, dtype=None, beside=()):
    """A softmax of the last dimension, or its logarithm. Saves its result.

    Under autocast, and where `dtype` says so, that is fp32; bf16 is cast first, and fp16 is not. spare: further tensors that its
    backward makes. beside: what its forward makes for itself, (shape, type) each.
    """
    direct = x.type.name == "fp16" and (dtype.name == "fp32" if dtype else x.tape.autocast)
    before = x.type
    wide = x if direct else cast(x, dtype, cast_title) if dtype else raised(x, cast_title)
    (out, *_) = several(x.tape, title, (x.shape, FP32 if direct else wide.type, strides_like(wide)), *beside)
    del _

    def run(node, grads, *_):
        grad = grads[0]
        kind = before if direct else grad.type
        first = grad.shape, kind, strides_like(grad)
        return several(grad.tape, f"{title} backward", first, *[(grad.shape, grad.type)] * spare)[:1]

    record(out, title, run, [wide], results=[out])
    return out


def softmax(x, title, scores="scores", dtype=None):
    """Its backward on CUDA makes one more tensor, the product of gradient and result. Source: `native/cuda/SoftMax.cu`."""
    return _over_scores(x, title, f"{scores} in fp32", 1, dtype)


def safe_softmax(x, title):
    """Attention's, which looks where scores are minus infinity, and in which rows all are. Source: `_safe_softmax`."""
    seen = (x.shape, BOOL), ((*x.shape[:-1], 1), BOOL), ((), x.type)
    return _over_scores(x, title, "scores in fp32", 1, beside=seen)


def log_softmax(x, title):
    """Source: `native/SoftMax.cpp`."""
    return _over_scores(x, title, "logits in fp32", 0)


# Matrix products.


def multiplied(
    kernel, title, left, right, shape, sizes, names=(), turned=False, bias=None, shared=False, kept=(), by="product"
):
    """A matrix product by a kernel of PyTorch's. Each factor is saved where the other requires a gradient.

    Args:
        shape: of the result. sizes: whose product is how many multiplications it takes. names: of the factors, for their gradients.
        turned: whether the right factor is a transposed view of a weight: so is its gradient. bias: added by the kernel. shared: as
            `linear`'s. kept: saved besides. by: one of `KERNELS`.
    """
    tape, biased, own = left.tape, bias is not None, bias is not None and (bias.shape, bias.type)
    inputs, (first, second) = [*[bias] * biased, left, right], names or (f"{title} input", f"{title} weight")
    shapes, kinds = (left.shape, right.shape), (left.type, right.type)
    to_left, to_right = wants_gradient(tape, left), wants_gradient(tape, right)
    saved = save(tape, inputs, *[left] * to_right, *[right] * to_left, *kept)

    def make(title, shape, kind):
        out = new(tape, title, shape, kind)
        tape.multiplied(*sizes, by=by)
        return out

    def forward():
        part = new(tape, f"{title} bias, own part", *own) if shared and biased else None  # noqa: F841
        return make(title, shape, kinds[0])

    out = tape.kernel(kernel, forward)

    def gradient(side, node, name):
        if not node.edges[side]:
            return None
        if not (turned and side == -1):
            return make(f"{name} gradient", shapes[side], kinds[side])
        *batch, rows, columns = shapes[side]
        return transposed(make(f"{name} gradient", (*batch, columns, rows), kinds[side]), -2, -1)

    def run(node, grads, *_):
        if biased:
            return [grads[0], gradient(-2, node, first), gradient(-1, node, second)]
        to_right = gradient(-1, node, second)
        return [gradient(-2, node, first), to_right]

    record(out, title, run, inputs, saved)
    return out


def linear(x, weight, bias, title, shared=False, bias_last=False):
    """x W^T + b. Saves the input where the weight requires a gradient, and the weight where the input does.

    The kernel of the product adds the bias, whose gradient is a sum over rows.

    shared: whether several GPUs' results are summed, so that each adds a part of the bias. bias_last: whether autocast casts the
    bias last, as of `addmm(bias, x, weight)`, and not first, as of `linear(x, weight, bias)`.

    Source: `native/Linear.cpp`; `addmm` and `mm` in derivatives.yaml, whose gradients run in the order of their names.
    """
    if bias is not None and not bias_last:
        bias = lowered_weight(bias, f"{title} bias cast")
    weight = lowered_weight(weight, f"{title} weight cast")
    low = lowered(x, f"{title} input cast")
    if bias is not None and bias_last:
        bias = lowered_weight(bias, f"{title} bias cast")
    *leading, inputs = x.shape
    rows, outputs, biased = product(leading), weight.shape[0], bias is not None
    turned = None if biased else transpose(weight, 0, 1)  # the view made last has its gradient first
    flat = reshape(low, (rows, inputs), title) if len(leading) != 1 else low
    turned = turned or transpose(weight, 0, 1)
    kernel, sizes = "aten.addmm" if biased else "aten.mm", (rows, inputs, outputs)
    out = multiplied(kernel, title, flat, turned, (rows, outputs), sizes, turned=True, bias=bias, shared=shared)
    return reshape(out, (*leading, outputs), title) if len(leading) != 1 else out


def linear_4bit(x, outputs, compute, title):
    """x W^T + b, with W frozen in NF4. W is dequantized in forward and again in backward; nothing is saved.

    For up to 1,536 rows some GPUs have a kernel that needs no whole W (bitsandbytes, `_gemm_4bit_use_custom_cuda`). Here W is
    dequantized for any number of rows.

    Source: bitsandbytes, nn/modules.py, `Linear4bit.forward`; autograd/_functions.py, `MatMul4Bit`; backends/cuda/ops.py,
    `_dequant_linear_fallback`.
    """
    tape, before, shape, inputs = x.tape, x.type, x.shape, x.shape[-1]
    rows, blocks = product(shape[:-1]), up(product((outputs, inputs)), NF4_BLOCK)
    low = cast(x, compute, f"{title} input cast")
    out, *scratch = several(
        tape, title, ((*shape[:-1], outputs), compute), ((blocks,), FP32), ((blocks,), FP32), ((outputs, inputs), compute)
    )  # fmt: skip
    tape.multiplied(rows, inputs, outputs)
    del scratch

    def run(node, grads):
        scales = new(tape, f"{title}: scales", (blocks,), FP32)
        weight = new(tape, f"{title}: weight dequantized", (outputs, inputs), compute)
        del scales
        flat = reshaped(grads[0], (rows, outputs), f"{title} gradient copied")  # noqa: F841
        made = new(tape, f"{title} input gradient", shape, compute)
        tape.multiplied(rows, inputs, outputs)
        del weight
        return [made]

    record(out, title, run, [low])
    return cast(out, before, f"{title} output cast")


def copied(x, title):
    """A copy."""
    out = like(title, x)
    record(out, title, lambda node, grads: [grads[0]], [x])
    return out


def matmul(x, y, title, names):
    """A batched matrix product, (B, A, S, K) by (B, A, K, N). Saves both.

    Operands that are not contiguous are copied first. Source: `native/LinearAlgebra.cpp`, `_matmul_impl`;
    `names`: of the operands, for what is copied and for their gradients.
    """
    batch, shape = product(x.shape[:2]), (*x.shape[:3], y.shape[3])
    low_y, low_x = lowered(y, f"{names[1]} cast"), lowered(x, f"{names[0]} cast")
    x3 = reshape(low_x, (batch, *x.shape[2:]), names[0])
    y3 = reshape(low_y, (batch, *y.shape[2:]), names[1])
    out = multiplied("aten.bmm", title, x3, y3, (batch, *shape[2:]), (*x3.shape, y3.shape[-1]), names)
    return reshape(out, shape, title)
