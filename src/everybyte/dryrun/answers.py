"""A cache of PyTorch's results for tensors without data: many of their kernels are written in Python, and slow."""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
#: Slow operations. All that they return is new, each tensor with a storage of its size.
_SLOW = {
    aten._foreach_sqrt.default, aten._log_softmax.default, aten._log_softmax_backward_data.default,
    aten._softmax_backward_data.default, aten.add.Tensor, aten.addmm.default, aten.cat.default, aten.clamp.default, aten.cumsum.default,
    aten.div.Scalar, aten.div.Tensor, aten.empty_like.default, aten.exp.default, aten.floor_divide.default, aten.gelu.default,
    aten.gelu_backward.default, aten.mean.dim,
    aten.mul.Scalar, aten.mul.Tensor, aten.native_dropout.default, aten.native_dropout_backward.default,
    aten.native_layer_norm.default, aten.native_layer_norm_backward.default, aten.neg.default, aten.nll_loss_backward.default,
    aten.nll_loss_forward.default, aten.pow.Tensor_Scalar, aten.rsqrt.default, aten.sigmoid.default, aten.sigmoid_backward.default,
    aten.silu.default, aten.slice_backward.default, aten.softplus.default, aten.softplus_backward.default, aten.sub.Tensor, aten.sum.dim_IntList, aten.tanh_backward.default, aten.zeros_like.default,
}  # fmt: skip


class _Elsewhere(Exception):
    """A tensor is not on meta."""


class _Form(NamedTuple):
    """A tensor's data type, size and stride; or another value with its type, since 2 and 2.0 are one key of a dict."""

    kind: Any
    value: Any
    stride: tuple = ()


def _form(value):
    """The form of a tensor or of another value; of a list or a tuple, a tuple."""
    if isinstance(value, torch.Tensor):
        if not value.is_meta:
            raise _Elsewhere
        return _Form(value.dtype, tuple(value.shape), value.stride())
    return tuple(map(_form, value)) if isinstance(value, list | tuple) else _Form(type(value), value)


def _made(form):
    """A tensor or value of this form."""
    if not isinstance(form, _Form):
        return list(map(_made, form))
    if isinstance(form.kind, torch.dtype):
        return torch.empty_strided(form.value, form.stride, dtype=form.kind, device="meta")
    return form.value


def answer(func, args, kwargs):
    """What the operation returns; for a slow one, PyTorch's own result from the cache, by the arguments' forms."""
    if func not in _SLOW:
        return func(*args, **kwargs)
    try:
        forms, named = _form(args), tuple((name, _form(value)) for name, value in kwargs.items())
    except _Elsewhere:
        return func(*args, **kwargs)
    found = _asked(func, forms, named)
    return _made(found) if isinstance(found, _Form) else tuple(map(_made, found))


@lru_cache(2**14)
def _asked(func, args, kwargs):
    out = func(*map(_made, args), **{name: _made(value) for name, value in kwargs})
    for tensor in tree_leaves(out):
        if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().nbytes() != tensor.numel() * tensor.itemsize:
            raise AssertionError(f"{func} returned a part of a storage")
    return _form(out)
