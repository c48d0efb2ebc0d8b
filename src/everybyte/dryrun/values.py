"""Values that sizes depend on: whole numbers and booleans that a batch was given with, and what is computed of them.

A model of pictures and text asks its batch for values: how many patches a picture has, which tokens stand for it. Where the reader
gives them, they are kept on the CPU beside the tensor without data, and so is what PyTorch computes of them, until it is read or
decides a size. No allocation comes of it: the tensors without data are what is counted.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
#: The most numbers of a tensor whose values are kept: more are pictures, or masks of attention.
MOST = 2**22
#: What makes whole numbers of no tensor.
_MADE = {
    aten.arange.default, aten.arange.start, aten.arange.start_step, aten.zeros.default, aten.ones.default, aten.full.default,
    aten.new_zeros.default, aten.new_ones.default, aten.new_full.default, aten.zeros_like.default, aten.ones_like.default,
    aten.full_like.default, aten.scalar_tensor.default,
}  # fmt: skip
#: What takes a mask in place of indices: CUDA first makes the indices of what it finds (`expandTensors` in `native/IndexingUtils.h`).
_MASKED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}


def _plain(tensor) -> bool:
    return tensor.dtype is torch.bool or not (tensor.is_floating_point() or tensor.is_complex())


class Values:
    """The values of tensors without data, by the address of the storage."""

    def __init__(self):
        self._kept: dict[int, Tensor] = {}

    def __bool__(self):
        return bool(self._kept)

    def forget(self, address: int) -> None:
        """Know nothing of a storage."""
        self._kept.pop(address, None)

    def of(self, tensor: Tensor) -> Tensor | None:
        """The values of a tensor, on the CPU; None where they are not known."""
        if not tensor.is_meta:
            return tensor if tensor.device.type == "cpu" else None
        flat = self._kept.get(tensor.untyped_storage()._cdata)
        if flat is None or flat.dtype is not tensor.dtype:
            return None
        return flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def tell(self, tensor: Tensor, values: Tensor) -> None:
        """Note the values of a tensor without data, whole numbers or booleans, where they are not too many."""
        address, size = tensor.untyped_storage()._cdata, tensor.untyped_storage().nbytes() // tensor.itemsize
        if not _plain(tensor) or size > MOST:
            return self.forget(address)
        flat = self._kept.get(address)
        if flat is None or flat.dtype is not tensor.dtype:
            flat = torch.zeros(size, dtype=tensor.dtype)
        flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(values)
        self._kept[address] = flat
        return None

    def _number(self, tensor):
        values = self.of(tensor)
        assert values is not None  # of what is asked for here, the numbers are known
        return values.item()

    def made(self, args, kwargs) -> Tensor:
        """What `torch.tensor` makes: on device meta it drops the numbers that it is given."""
        out, known = torch.tensor(*args, **kwargs), [self.of(t) for t in tree_leaves(args) if isinstance(t, Tensor)]
        if out.is_meta and _plain(out) and all(one is not None for one in known):
            numbers = tree_map(lambda leaf: self._number(leaf) if isinstance(leaf, Tensor) else leaf, args)
            self.tell(out, torch.tensor(*numbers, **{**kwargs, "device": "cpu"}))
        return out

    def follows(self, func, args) -> bool:
        """Whether an operation may concern a known value: one brings it, makes it, or works with it."""
        if self._kept:
            return True
        return (
            func is aten._to_copy.default and args[0].device.type == "cpu" and _plain(args[0]) and args[0].numel() > 0
        )

    def run(self, func, args, kwargs, answer: Callable):
        """What an operation returns. answer: runs it on tensors without data."""
        known = {id(t): self.of(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        if any(values is None for values in known.values()) or not (known or func in _MADE):
            self._changed(func, args)
            return answer(func, args, kwargs)
        if func is aten._local_scalar_dense.default:
            return self._number(args[0])
        if func is aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):
            return func(known[id(args[0])], **kwargs)
        return self._both(func, args, kwargs, known, answer)

    def _both(self, func, args, kwargs, known, answer):
        """Run an operation on tensors without data, and on the values that all of them have."""
        dynamic = torch.Tag.dynamic_output_shape in func.tags
        out = None if dynamic else answer(func, args, kwargs)
        made = [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.is_meta and _plain(t) and t.numel() <= MOST]
        if not dynamic and not (made if func._schema.is_mutable else [t for t in made if self.of(t) is None]):
            return out
        theirs = tree_map(lambda leaf: known[id(leaf)] if isinstance(leaf, Tensor) else leaf, (args, kwargs))
        if kwargs.get("device") == torch.device("meta"):
            theirs[1]["device"] = torch.device("cpu")
        values = func(*theirs[0], **theirs[1])  # one that changes its argument changes the values that are kept
        if dynamic:
            out = tree_map(lambda t: torch.empty_like(t, device="meta") if isinstance(t, Tensor) else t, values)
        for tensor, what in zip(tree_leaves(out), tree_leaves(values), strict=True):
            if isinstance(tensor, Tensor) and tensor.is_meta and self.of(tensor) is None:
                self.tell(tensor, what)
        return out

    def _changed(self, func, args):
        """Forget what an operation changes in a way that is not known."""
        for argument, given in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for one in tree_leaves(given):
                    if isinstance(one, Tensor) and one.is_meta:
                        self.forget(one.untyped_storage()._cdata)

    def masks(self, func, args) -> bool:
        """Whether an operation takes known masks in place of indices."""
        given = args[1] if func in _MASKED else ()
        return any(one is not None and one.dtype is torch.bool and self.of(one) is not None for one in given)

    def count(self, mask: Tensor, shape) -> int | None:
        """How many a mask finds of a tensor of that shape; None where it is not known."""
        values = self.of(mask)
        if values is None:
            return None
        values, times = values.expand(torch.broadcast_shapes(mask.shape, shape)), 1
        for place, stride in enumerate(values.stride()):
            if stride == 0:  # the same again
                times, values = times * values.size(place), values.narrow(place, 0, 1)
        return times * int(values.sum())
