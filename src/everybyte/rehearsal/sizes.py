"""Sizes that data decide: which rows a mask finds, and which experts a router chooses.

No kernel computes, so a mask's rows are a share that is asked for. A router's choice is made up: `topk` or `argmax` over a few experts.
What a script computes of it on the GPU (masks, counts, orders, sums) is computed on the CPU as well, by PyTorch's own operations, until
it decides a size or is read. In-place changes that are not followed make a tensor unknown again: its version tells.
"""

from collections.abc import Callable
from math import ceil

from .others import counted, override

#: The most experts of a router: what chooses among more, such as a vocabulary, is none. The most numbers that are followed in one tensor.
EXPERTS, NUMBERS = 1024, 2**26
#: What is followed where its tensors are known.
FOLLOWED = """
    eq.Scalar eq.Tensor ne.Scalar ne.Tensor lt.Scalar lt.Tensor le.Scalar le.Tensor gt.Scalar gt.Tensor ge.Scalar ge.Tensor
    bitwise_and.Tensor bitwise_or.Tensor bitwise_not logical_and logical_or logical_not
    sum sum.dim_IntList any any.dim max min aminmax cumsum count_nonzero count_nonzero.dim_IntList bincount histc repeat_interleave.Tensor
    sort sort.stable index.Tensor index_select gather scatter.value scatter.src scatter_.value scatter_.src scatter_add scatter_add_ copy_ _to_copy clone
    arange.start_out
""".split()
#: What is followed of a number besides, such as how many rows a mask finds.
OF_NUMBERS = "add.Tensor sub.Tensor mul.Tensor div.Tensor ceil floor clamp".split()
ROUTINGS = ("balanced", "worst")
#: Said where this PyTorch cannot: `torch.library.get_kernel` came with 2.9.
TOO_OLD = "a router's choice is not followed by this PyTorch: masks find the rows that --rows says, and `unique` one"


class _Known:
    """Tensors on the GPU whose content is known: of each its storage's, on the CPU."""

    def __init__(self, torch):
        from torch.multiprocessing.reductions import StorageWeakRef

        self.torch, self.weak, self.kept = torch, StorageWeakRef, {}

    def of(self, tensor):
        """The content of a tensor, None where it is not known."""
        weak, version, flat, _ = self.kept.get(tensor.untyped_storage()._cdata, (None,) * 4)
        if weak is None or weak.expired() or flat.dtype != tensor.dtype or version != _version(tensor):
            return None
        return flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def masked(self, tensor):
        """Whether what is known of a tensor comes of how many rows a mask finds."""
        return self.kept.get(tensor.untyped_storage()._cdata, (False,))[-1]

    def tell(self, tensor, content, changed=False, masked=False):
        """Note the content of a tensor. changed: whether it is being changed in place, which counts its version after this."""
        storage = tensor.untyped_storage()
        self.kept.pop(storage._cdata, None)
        size = storage.nbytes() // tensor.element_size()
        if size > NUMBERS:
            return
        flat = self.torch.zeros(size, dtype=tensor.dtype, device="cpu")
        flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(content)
        version = _version(tensor)
        self.kept = {key: kept for key, kept in self.kept.items() if not kept[0].expired()}
        self.kept[storage._cdata] = self.weak(storage), version if version is None else version + changed, flat, masked


def _version(tensor):
    return None if tensor.is_inference() else tensor._version


class Sizes:
    """Lets masks and routers of a process decide sizes.

    Args:
        share: of the rows, what a mask finds of which nothing is known. worst: whether a router sends every token to the first experts,
            and not as many to each. seen: called with what was found, of how many, and whether a router's choice said so. note: called
            with what the report should say.
    """

    def __init__(self, torch, share: float, worst: bool, seen: Callable, note: Callable[[str], None]):
        self.torch, self.share, self.worst, self.seen = torch, share, worst, seen
        self.known, self.following = _Known(torch), set()
        self.library = torch.library.Library("aten", "IMPL")  # what is put into it stays as long as it lives
        override(self.library, "nonzero", self._nonzero)
        torch.Tensor.cpu = self._brought(torch.Tensor.cpu)
        if not hasattr(torch.library, "get_kernel"):
            return note(TOO_OLD)
        override(self.library, "sum", self._counted(), keys=True)
        for name in ("topk", "argmax", "max.dim"):
            override(self.library, name, self._chosen(name), keys=True)
        for name in ("_unique2", "unique_consecutive", "unique_dim"):
            override(self.library, name, self._unique(name), keys=True)

    def _kernel(self, name):
        return self.torch.library.get_kernel(f"aten::{name}", "CUDA").call_boxed

    def _nonzero(self, mask):
        content = None if counted else self.known.of(mask)
        if content is None:
            places, found = None, counted[-1] if counted else ceil(self.share * mask.numel())
        else:
            places = content.nonzero()
            found = len(places)
        self.seen(found, mask.numel(), content is not None)
        made = self.torch.empty((mask.dim(), found), dtype=self.torch.int64, device=mask.device).t()
        if places is not None:
            self.known.tell(made, places)
        return made

    def _brought(self, original):
        """A mask that is brought to the CPU, and of which nothing is known, says as many rows, evenly spread."""
        torch = self.torch

        def bring(mask, *args, **kwargs):
            found = original(mask, *args, **kwargs)
            brought = mask.dtype == torch.bool and mask.is_cuda and not found.is_cuda and mask.numel() > 1
            if brought and self.known.of(mask) is None:
                every = torch.arange(mask.numel() + 1, device="cpu").mul(self.share).ceil().diff() > 0
                self.seen(int(every.sum()), mask.numel(), False)
                found.copy_(every.view(found.shape))
            return found

        return bring

    def _counted(self):
        """The number of a mask's rows, where nothing is known of it: those that it finds."""
        kernel, torch = self._kernel("sum"), self.torch

        def count(keys, values, *args, **kwargs):
            found = kernel(keys, values, *args, **kwargs)
            if values.dtype == torch.bool and values.numel() > 1 and self.known.of(values) is None:
                self._follow_all(OF_NUMBERS)
                rows = torch.tensor(ceil(self.share * values.numel()), device="cpu")
                self.known.tell(found, rows, masked=True)
            return found

        return count

    def _chosen(self, name):
        """The experts that a router chooses: as many tokens for each, or the first ones for all."""
        kernel, torch = self._kernel(name), self.torch

        def choose(keys, values, *args, **kwargs):
            found = kernel(keys, values, *args, **kwargs)
            indices = found if name == "argmax" else found[1]
            at = {"topk": 1, "argmax": 0, "max.dim": 0}[name]
            dim = args[at] if len(args) > at else kwargs.get("dim", -1 if name == "topk" else None)
            if dim is None or not values.dim() or not 1 < values.shape[dim] <= EXPERTS:
                return found
            count = indices.shape[dim] if indices.dim() == values.dim() else 1
            tokens, experts = values.numel() // values.shape[dim], values.shape[dim]
            if indices.numel() != tokens * count or indices.numel() > NUMBERS:
                return found
            choice = (
                torch.arange(count, device="cpu").repeat(tokens)
                if self.worst
                else torch.arange(tokens * count, device="cpu") % experts
            )
            others = [size for i, size in enumerate(values.shape) if i != dim % values.dim()]
            self._follow_all()
            self.known.tell(indices, choice.view(*others, count).movedim(-1, dim).reshape(indices.shape))
            return found

        return choose

    def _follow_all(self, more=()):
        """Follow what scripts compute of what is known: from the first time on, so that others run as they are. more: than FOLLOWED."""
        names = [name for name in (*FOLLOWED, *more) if name not in self.following]
        for name in names:
            override(self.library, name, self._followed(name), keys=True)
        if not self.following:
            self._read_what_is_known()
        self.following.update(names)

    def _read_what_is_known(self):
        """Let `item`, `int` and their like read what is known."""
        kernel = self._kernel("_local_scalar_dense")

        def read(keys, one):
            content = self.known.of(one)
            if content is None:
                return kernel(keys, one)
            self.seen(None, None, not self.known.masked(one))
            return content.item()

        override(self.library, "_local_scalar_dense", read, keys=True)

    def _followed(self, name):
        kernel, torch = self._kernel(name), self.torch
        short, _, overload = name.partition(".")
        call = getattr(getattr(torch.ops.aten, short), overload or "default")
        tensors = [argument.type.kind() == "TensorType" for argument in call._schema.arguments]

        def follow(keys, *args, **kwargs):
            args = [
                self._number(one, args) if t and not torch.is_tensor(one) else one
                for t, one in zip(tensors, args, strict=False)
            ]
            told = self.known.kept and self._contents(short, [*args], kwargs)
            if not told:
                return kernel(keys, *args, **kwargs)
            there, more = told
            device = args[0].device if short == "copy_" else torch.device(kwargs.get("device") or "cuda")
            if device.type == "cpu":
                self.seen(None, None, True)
                return args[0].copy_(there[1]) if short == "copy_" else call(*there, **more)
            more = more | ({"device": "cpu"} if "device" in more else {})
            found, content = kernel(keys, *args, **kwargs), call(*there, **more)
            content = content.to(found.dtype) if short == "histc" else content
            masked = any(map(self.known.masked, filter(torch.is_tensor, args)))
            for made, what in zip(*([x] if torch.is_tensor(x) else x for x in (found, content)), strict=True):
                self.known.tell(made, what, short.endswith("_"), masked)
            return found

        return follow

    def _number(self, one, args):
        """A tensor for what was a number in Python, and comes here as one again: of a type that changes no result's."""
        torch = self.torch
        kind = next((other.dtype for other in args if torch.is_tensor(other)), torch.bool)
        if isinstance(one, complex) and kind.is_floating_point:
            kind = kind.to_complex()
        kept = (
            kind.is_complex
            or isinstance(one, int | float)
            and (kind.is_floating_point or isinstance(one, int) and kind.itemsize >= 4)
        )
        return torch.tensor(one, dtype=kind if kept else None, device="cpu")

    def _contents(self, name, args, kwargs):
        """The arguments with the content of their tensors in place of these; None where one is not known, or none is."""
        torch, counts = self.torch, {True: 0, False: 0}
        if name == "arange":
            out = kwargs["out"]
            return (
                (args, {"out": torch.empty(out.shape, dtype=out.dtype, device="cpu")})
                if out.numel() <= EXPERTS
                else None
            )
        if name == "histc" and self.known.of(args[0]) is not None:
            args[0] = self.known.of(args[0]).double()  # on the CPU it counts no whole numbers
            return args, kwargs
        if name == "copy_":
            if not torch.is_tensor(args[1]) or self.known.of(args[1]) is None:
                return None
            args[0] = torch.empty(args[0].shape, dtype=args[0].dtype, device="cpu")
        if name.startswith("scatter") and self.known.of(args[2]) is not None:
            value = args[
                3
            ]  # what is scattered, where it is not known, is taken for ones; what is scattered into, for the opposite
            if torch.is_tensor(value) and self.known.of(value) is None:
                value = args[3] = torch.ones(value.shape, dtype=value.dtype, device="cpu")
            before = self.known.of(args[0])
            empty = torch.zeros if torch.is_tensor(value) or value else torch.ones
            args[0] = empty(args[0].shape, dtype=args[0].dtype, device="cpu") if before is None else before.clone()

        def content(one):
            if not torch.is_tensor(one) or not one.is_cuda:
                return one
            found = self.known.of(one)
            counts[found is not None] += 1
            return found

        said = torch.utils._pytree.tree_map(content, (args, kwargs))
        return said if counts[True] and not counts[False] else None

    def _unique(self, name):
        """The different ones: of what is not known, all are."""
        kernel, torch = self._kernel(name), self.torch
        call = getattr(torch.ops.aten, name).default

        def unique(keys, values, *args, **kwargs):
            kernel(keys, values, *args, **kwargs)  # for what it works in
            content = self.known.of(values)
            there = torch.arange(values.numel(), device="cpu").view(values.shape) if content is None else content
            told = call(there, *args, **kwargs)
            self.seen(len(told[0]), values.numel(), content is not None)
            made = tuple(
                torch.empty(one.shape, dtype=values.dtype if i == 0 else one.dtype, device=values.device)
                for i, one in enumerate(told)
            )
            if content is not None:
                for one, what in zip(made, told, strict=True):
                    self.known.tell(one, what)
            return made

        return unique
