"""Sizes that data decide: which rows a mask finds, which experts a router chooses, and whole numbers that a script brings.

No kernel computes, so a mask's rows are a share that is asked for. A router's choice is made up: `topk` or `argmax` over a few experts.
Whole numbers and booleans that come from the CPU are known. What a script computes of these on the GPU is `followed`.
"""

from collections.abc import Callable
from math import ceil

from . import others, ranks
from .followed import Followed, kernel
from .known import CONSTANT, DATA, MASK, NOBODY, NUMBERS, ROUTER, Known
from .others import counted, override

#: The most experts of a router: what chooses among more, such as a vocabulary, is none.
EXPERTS = 1024
ROUTINGS = ("balanced", "worst")
#: What a script asks of a number before it decides.
JUDGED = ("isfinite", *(f"{name}.{of}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for of in ("Scalar", "Tensor")))
#: PyTorch's key of what works on sparse tensors.
SPARSE = "SparseCUDA"
#: Said where this PyTorch cannot: `torch.library.get_kernel` came with 2.9.
TOO_OLD = (
    "numbers that the script brings, and a router's choice, are not followed by this PyTorch: masks find the rows that --rows says, and "
    "`unique` one"
)


class Sizes:
    """Lets masks, routers and what the script brings decide sizes.

    Args:
        share: of the rows, what a mask finds of which nothing is known. worst: whether a router sends every token to the first experts,
            and not as many to each. seen: called with what was found, of how many, and whence that is known, of `known.KINDS`. note:
            called with what the report should say.
    """

    def __init__(self, torch, share: float, worst: bool, seen: Callable, note: Callable[[str], None]):
        self.torch, self.share, self.worst, self.seen = torch, share, worst, seen
        self.known = Known(torch)
        self.library = torch.library.Library("aten", "IMPL")  # what is put into it stays as long as it lives
        override(self.library, "nonzero", self._nonzero)
        torch.Tensor.cpu = self._brought(torch.Tensor.cpu)
        if not hasattr(torch.library, "get_kernel"):
            return note(TOO_OLD)
        if torch.distributed.is_available():
            ranks.forget_what_is_exchanged(torch, self.known)
        self.followed = Followed(torch, self.library, self.known, seen)
        others.contents[:] = [self.known]
        override(self.library, "sum", self._counted(), keys=True)
        for name in ("topk", "argmax", "max.dim"):
            override(self.library, name, self._chosen(name), keys=True)
        for name in ("_unique2", "unique_consecutive", "unique_dim"):
            override(self.library, name, self._unique(name), keys=True)
        for name in ("repeat_interleave.Tensor", "bincount"):
            override(self.library, name, self._read_as_zeros(name), keys=True)
        for name in JUDGED:
            override(self.library, name, self._judged(name), keys=True)
        override(self.library, "_coalesce", self._coalesced(), keys=True, key=SPARSE)

    def _found_by(self, tensor):
        """Whence it is known how many a tensor has: of one of which nothing is known, by rule."""
        return MASK if self.known.of(tensor) is None else self.known.kind(tensor)

    def _nonzero(self, mask):
        content = None if counted else self.known.of(mask)
        if content is None:
            places, found = None, counted[-1] if counted else ceil(self.share * mask.numel())
        else:
            places = content.nonzero()
            found = len(places)
        self.seen(found, mask.numel(), MASK if counted else self._found_by(mask))
        made = self.torch.empty((mask.dim(), found), dtype=self.torch.int64, device=mask.device).t()
        if places is not None:
            self.known.tell(made, places, self.known.kind(mask))
        return made

    def _brought(self, original):
        """A mask that is brought to the CPU, and of which nothing is known, says as many rows, evenly spread."""
        torch = self.torch

        def bring(mask, *args, **kwargs):
            found = original(mask, *args, **kwargs)
            brought = mask.dtype == torch.bool and mask.is_cuda and not found.is_cuda and mask.numel() > 1
            if brought and self.known.of(mask) is None:
                every = torch.arange(mask.numel() + 1, device="cpu").mul(self.share).ceil().diff() > 0
                self.seen(int(every.sum()), mask.numel(), MASK)
                found.copy_(every.view(found.shape))
            return found

        return bring

    def _counted(self):
        """The number of a mask's rows, where nothing is known of it: those that it finds."""
        add, torch = kernel(self.torch, "sum"), self.torch

        def count(keys, values, *args, **kwargs):
            found = add(keys, values, *args, **kwargs)
            if values.dtype == torch.bool and values.numel() > 1 and self.known.of(values) is None:
                self.followed.begin()
                self.known.tell(found, torch.tensor(ceil(self.share * values.numel()), device="cpu"), MASK)
            return found

        return count

    def _chosen(self, name):
        """The experts that a router chooses: as many tokens for each, or the first ones for all."""
        select, torch = kernel(self.torch, name), self.torch
        short, _, overload = name.partition(".")
        call = getattr(getattr(torch.ops.aten, short), overload or "default")

        def choose(keys, values, *args, **kwargs):
            found = select(keys, values, *args, **kwargs)
            indices = found if name == "argmax" else found[1]
            if self.known.kind(values) == DATA:
                told = call(self.known.of(values), *args, **kwargs)
                for one, what in zip(*([x] if torch.is_tensor(x) else x for x in (found, told)), strict=True):
                    self.known.tell(one, what, DATA)
                return found
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
            sizes = [size for i, size in enumerate(values.shape) if i != dim % values.dim()]
            self.followed.begin()
            self.known.tell(indices, choice.view(*sizes, count).movedim(-1, dim).reshape(indices.shape), ROUTER)
            return found

        return choose

    def _unique(self, name):
        """The different ones: of what is not known, all are."""
        work, torch = kernel(self.torch, name), self.torch
        call = getattr(torch.ops.aten, name).default

        def unique(keys, values, *args, **kwargs):
            work(keys, values, *args, **kwargs)  # for what it works in
            content = self.known.of(values)
            there = torch.arange(values.numel(), device="cpu").view(values.shape) if content is None else content
            told = call(there, *args, **kwargs)
            self.seen(len(told[0]), values.numel(), self._found_by(values))
            made = tuple(
                torch.empty(one.shape, dtype=values.dtype if i == 0 else one.dtype, device=values.device)
                for i, one in enumerate(told)
            )
            if content is not None:
                for one, what in zip(made, told, strict=True):
                    self.known.tell(one, what, self.known.kind(values))
            return made

        return unique

    def _judged(self, name):
        """What is asked of one number, such as whether a loss is finite, or less than another: 0 is what it is read as."""
        work, torch = kernel(self.torch, name), self.torch
        short, _, overload = name.partition(".")
        call = getattr(getattr(torch.ops.aten, short), overload or "default")

        def number(one):
            if not torch.is_tensor(one) or not one.is_cuda:
                return one
            content = self.known.of(one, constants=True)
            return torch.zeros(one.shape, dtype=one.dtype, device="cpu") if content is None else content

        def judge(keys, value, *others):
            found = work(keys, value, *others)
            alone = not found.dim() or name == "isfinite" and found.numel() == 1
            asked = alone and torch.is_tensor(value) and value.is_floating_point()
            if asked and self.known.of(found, constants=True) is None:
                self.followed.begin()
                self.known.tell(found, call(number(value), *map(number, others)), CONSTANT)
            return found

        return judge

    def _read_as_zeros(self, name):
        """Counts that only kernels know are read as zeros: what is as long as they sum to has no rows then."""
        work = kernel(self.torch, name)

        def read(keys, counts, *args, **kwargs):
            if self.known.of(counts, constants=True) is None:
                self.seen(0, counts.numel(), NOBODY)
            return work(keys, counts, *args, **kwargs)

        return read

    def _coalesced(self):
        """A sparse gradient's rows, each once: of indices that are not known, all are different.

        Source: PyTorch, `aten/src/ATen/native/sparse/cuda/SparseCUDATensor.cu` (`coalesce_sparse_cuda`): flat indices, of which the first
        ones become the new ones where one dimension is sparse, and two more of that length while the values are added.
        """
        work, torch = kernel(self.torch, "_coalesce", SPARSE), self.torch

        def coalesce(keys, sparse):
            indices, values = sparse._indices(), sparse._values()
            entries, made = sparse._nnz(), work(keys, sparse)  # the second for what it works in
            if entries < 2 or not torch.is_tensor(made):
                return made
            del made
            content = self.known.of(indices)
            found = entries if content is None else content.unique(dim=1).shape[1]
            self.seen(found, entries, self._found_by(indices))
            flat, _, _ = (torch.empty(entries, dtype=torch.int64, device=values.device) for _ in range(3))
            kept = torch.empty((found, *values.shape[1:]), dtype=values.dtype, device=values.device)
            of_one = len(indices) == 1
            at = flat[:found][None] if of_one else torch.empty((len(indices), found), dtype=torch.int64, device=values.device)  # fmt: skip
            return torch.sparse_coo_tensor(at, kept, sparse.shape, is_coalesced=True, check_invariants=False)

        return coalesce
