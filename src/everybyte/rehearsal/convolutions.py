"""Convolutions as cuDNN has them, without cuDNN: results and gradients as PyTorch lays them out, and what cuDNN works in, by a rule.

Where cuDNN is off PyTorch unrolls an image instead, into a buffer that no GPU with cuDNN takes.
"""

from collections.abc import Callable
from math import ceil

from .others import override

#: What the report says.
SAID = (
    "convolutions are cuDNN's: what they work in is asked for by the rule that 40 cases on an H200 showed, fp32 as TF32, without the "
    "sums that an algorithm splits and what cudnn.benchmark tries"
)
#: Bytes beside copies; what 16-bit channels of the input are padded to a multiple of, and below which there are few.
_BESIDE, _CHANNELS = 16, 8


def by_rule(torch, seen: Callable[[], None]) -> object:
    """Ask for what cuDNN's convolutions take, wherever PyTorch would choose them on a GPU.

    Source: PyTorch, `aten/src/ATen/native/Convolution.cpp`, `cudnn/ConvShared.cpp`. Depthwise convolutions that do not lie in
    channels_last are PyTorch's own kernels, and stay so.

    Args:
        seen: called each time.

    Returns:
        What keeps it so, as long as it lives.
    """
    rule = _Rule(torch, seen)
    torch._C._select_conv_backend = rule.selected
    library = torch.library.Library("aten", "IMPL")
    override(library, "convolution", rule.forward)
    override(library, "convolution_backward", rule.backward)
    return library


class _Rule:
    """What PyTorch chooses with cuDNN, and asks for there."""

    def __init__(self, torch, seen):
        self.torch, self.seen = torch, seen
        self.select, self.kinds = torch._C._select_conv_backend, torch._C._ConvBackend
        self.ours = (self.kinds.Cudnn, self.kinds.CudnnTranspose)
        self.depthwise = (self.kinds.CudaDepthwise2d, self.kinds.CudaDepthwise3d)

    def form(self, x, weight):
        return self.torch._C._conv_determine_backend_memory_format(_flat(x), _flat(weight), self.kinds.Cudnn)

    def selected(self, input, weight, bias=None, *rest, **more):
        """As PyTorch selects with cuDNN. It checks shapes. Compiled code asks too."""
        found = self.select(input, weight, bias, *rest, **more)
        apart = found in self.depthwise and self.form(input, weight) == self.torch.contiguous_format
        types = {x.dtype for x in (input, weight, bias) if x is not None}
        one = input.device == weight.device and types == {input.dtype}
        if apart or not one or input.device.type != "cuda" or found in (self.kinds.Empty, self.kinds.Overrideable):
            return found
        return self.ours[more["transposed"] if "transposed" in more else rest[3]]

    def original(self, name, *said):
        operation = getattr(self.torch.ops.aten, name).default
        return operation._op_dk(self.torch._C.DispatchKey.CompositeExplicitAutograd, *said)

    def work(self, x, weight, out, stride, groups, of_weight=False):
        contiguous = self.form(x, weight) == self.torch.contiguous_format
        if size := workspace(x, weight, out, stride, groups, contiguous, of_weight):
            self.torch.empty(size, dtype=self.torch.uint8, device=x.device)

    def empty(self, shape, like, lies):
        return self.torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=lies)

    def forward(self, x, weight, bias, *said):
        stride, _, _, transposed, _, groups = said
        if self.selected(x, weight, bias, *said) not in self.ours:
            return self.original("convolution", x, weight, bias, *said)
        self.seen()
        shape = self.torch.ops.aten.convolution.default(x.to("meta"), weight.to("meta"), None, *said)
        lies, dim = self.form(x, weight), x.dim()
        x, weight = (_flat(one).contiguous(memory_format=lies) for one in (x, weight))
        found = self.empty(_flat(shape).shape, x, lies)
        self.work(*((found, weight, x) if transposed else (x, weight, found)), stride, groups)
        if bias is not None:
            found.add_(bias.view(1, -1, *[1] * (found.dim() - 2)))
        return found.squeeze(2) if dim == 3 else found

    def backward(self, gradient, x, weight, sizes, *said):
        stride, _, _, transposed, _, groups, wanted = said
        if self.selected(x, weight, None, *said[:-1], sizes) not in self.ours:
            return self.original("convolution_backward", gradient, x, weight, sizes, *said)
        lies, dim, (gradient, x, weight) = self.form(x, weight), x.dim(), map(_flat, (gradient, x, weight))
        found = self.gradients(gradient, x, weight, lies, transposed, wanted, stride, groups)
        found = [one.squeeze(2) if dim == 3 and one is not None else one for one in found]
        return *found, gradient.sum([0, *range(2, gradient.dim())]) if wanted[2] else None

    def gradients(self, gradient, x, weight, lies, transposed, wanted, *more):
        x = x.contiguous(memory_format=lies) if wanted[1] else x
        gradient = gradient.contiguous(memory_format=lies)
        of_x, of_weight = None, None
        if wanted[0]:
            of_x, weight = self.empty(x.shape, x, lies), weight.contiguous(memory_format=lies)
            self.work(*((gradient, weight, of_x) if transposed else (of_x, weight, gradient)), *more)
        if wanted[1]:
            of_weight = self.empty(weight.shape, x, lies)
            self.work(*((gradient, of_weight, x) if transposed else (x, of_weight, gradient)), *more, of_weight=True)
        return of_x, of_weight


def _flat(x):
    """What has one dimension, as the second of two: so PyTorch sees it too."""
    return x.unsqueeze(2) if x.dim() == 3 else x


def workspace(x, weight, out, stride: list[int], groups: int, contiguous: bool, of_weight: bool) -> int:
    """Bytes that cuDNN works in, but for sums that its algorithm splits: what 40 cases took on an H200 (`labs/records/scripts`, cuDNN 9.19).

    Tensor cores compute in channels_last. So in PyTorch's contiguous layout input, weight and output are copied, the input's 16-bit
    channels padded to a multiple of 8. A matrix product needs none of it: 1 x 1 with stride 1.

    Args:
        x, weight, out: of a convolution that is not transposed, or their gradients. of_weight: whether it is the weight's gradient.
    """
    channels, half = x.shape[1], x.element_size() == 2
    product = all(size == 1 for size in (*weight.shape[2:], *stride))
    if product or x.element_size() > 4 or groups == channels > 1:
        return 0
    few, padded = channels < _CHANNELS, _CHANNELS * ceil(channels / _CHANNELS) if half else channels
    copies = (x.nbytes + weight.nbytes) * padded // channels + _BESIDE
    if not contiguous:
        with_output = few and of_weight and not half
        return copies + with_output * out.nbytes if few or padded > channels else 0
    if few and not of_weight and all(one == 1 for one in stride):  # an image's first layer
        return 0 if half else copies
    return copies + out.nbytes
