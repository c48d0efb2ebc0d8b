"""Follow every tensor from allocation to free, below autograd, on tensors without data."""

import weakref
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple
from unittest import mock

import torch
from torch import nn
from torch._subclasses import FakeTensor  # DTensor's, which asks by them for the shape of a result
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from . import interrupts
from .answers import answer
from .cuda import ANSWERS, FLOPS, IN_THE_OPEN, ON_HOST, SCRATCH, masked_scatter_backward, refused
from .values import Values

aten = torch.ops.aten
#: The in-place operations on lists of tensors that PyTorch's optimizers are made of.
_IN_PLACE = {getattr(aten, f"_foreach_{name}_") for name in "add addcdiv addcmul copy div lerp mul zero".split()}
#: Operation that autograd calls under a dispatch mode -> the one without a mode, which writes into zeros that it just made.
_INTO = {
    aten.index_put.default: aten.index_put_.default, aten.scatter.src: aten.scatter_.src,
    aten.scatter_add.default: aten.scatter_add_.default,
}  # fmt: skip
_ZEROS = {"new_zeros", "zeros", "zeros_like"}
#: FSDP's operations that write into given tensors; the CPU's kernels make padded copies, CUDA's do not.
_COPIES = ("fsdp::chunk_cat", "fsdp::split_with_sizes_copy")
#: Tags of operations whose result depends on a tensor's values.
_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
#: Products and convolutions, whose factors have one data type.
_ONE_TYPE = {getattr(aten, name) for name in "mm addmm bmm baddbmm mv addmv dot convolution _grouped_mm".split()}
#: Operations that may take tensors from two devices.
_CROSSING = {aten.copy_, aten._to_copy, aten.index, aten.index_put, aten.index_put_}


@dataclass(slots=True)
class Allocation:
    """One storage.

    Attributes:
        bytes: its size. birth: the number of the operation that made it. death: the number of the last operation before it was
            freed; None while it lives. owner: the operation's module. operation: the operation's name. part: of memory.
        host: whether it is in the memory of the CPU. stream: on which it was made; 0 for the step's own.
    """

    bytes: int
    birth: int
    owner: str
    operation: str
    part: str
    death: int | None = None
    host: bool = False
    stream: int = 0


class Change(NamedTuple):
    """(an allocation, "birth" or "death"); or (None, the name of a moment)."""

    allocation: Allocation | None
    what: str


class Tracker(TorchDispatchMode):
    """Follows the storages on device "meta" while it is entered.

    While an operation runs, its inputs and outputs are all live: what it frees is freed after it.

    Attributes:
        operations: (name, phase, owner) of each operation that allocated, and of each mark.
        allocations: every `Allocation`, in order of birth.
        changes: births and deaths in order, also those before `restart`.
        phase: set by the caller: `rest`, `forward`, `backward`, `optimizer step`.
        opened: classes of tensors that wrap others; the inner ones are followed.
        flops: of matrix products and convolutions; products: {operation: function that gives its FLOPs}.
        asked: classes of tensors that PyTorch uses only to find shapes. unseen: those, and the wrapper of a collective's result.
        heads: paths of modules whose output a loss function is given, or that are a loss.
        host: whether new tensors are in the memory of the CPU. stream: on which they are made, 0 for the step's own.
        steady: set by the caller: whether the counted step left the memory that it found.
        values: of the batch, where it was given with whole numbers.
    """

    opened: tuple[type, ...] = ()
    asked: tuple[type, ...] = (FakeTensor,)
    unseen: tuple[type, ...] = (FakeTensor, AsyncCollectiveTensor)
    products = FLOPS

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing compiles here, and PyTorch's guard against it costs as much as half of an operation

    def __init__(self):
        super().__init__()
        self.operations = [("rest", "rest", "")]
        self.allocations: list[Allocation] = []
        self.changes: list[Change] = []
        self.phase, self.flops, self.steady = "rest", 0, True
        self.values = Values()
        self._live: dict[int, Allocation] = {}  # by the storage's address
        self._refs: dict[int, weakref.ref] = {}
        self._modules = [""]
        self._owner_of_node: dict[int, str] = {}  # by autograd's sequence number
        self._last_node = -1
        self._place_of_node: dict[int, int] = {}  # the number of its operation, or of the next one that allocates
        self.heads: set[str] = set()
        self._losses: set[str] = set()  # modules of torch.nn that are a loss
        self._weights: set[int] = set()
        self._sole = sole_holder()
        self.host = False
        self.stream = 0
        self._making = None  # the part and the owner that everything belongs to for a while

    @property
    def now(self) -> int:
        """The number of the last operation or mark."""
        return len(self.operations) - 1

    def mark(self, name: str) -> int:
        """Note a moment between operations; return its number."""
        self.operations.append((name, self.phase, ""))
        self.changes.append(Change(None, name))
        return self.now

    def restart(self) -> None:
        """Forget the past; what lives now counts as there before."""
        self.flops = 0
        self.operations = [("rest", "rest", "")]
        self.allocations = [a for a in self._live.values() if a.death is None and a.bytes]
        for allocation in self.allocations:
            allocation.birth = 0

    def left(self) -> bool:
        """Whether something lives that was made since the `restart`."""
        return any(a.birth and a.death is None and a.bytes for a in self._live.values())

    def assign(self, tensor, part: str, owner: str = "", device: bool = False) -> None:
        """Set the part and the owner of a tensor; follow it from now on if it is unknown.

        device: whether it is on the GPU, wherever it was made.
        """
        for storage in (plain.untyped_storage() for plain in made_of(tensor)):
            if storage._cdata not in self._live:
                self._follow(storage, owner, "", part)
            allocation = self._live[storage._cdata]
            allocation.part, allocation.owner = part, owner or allocation.owner
            if part == "parameters":
                self._weights.add(storage._cdata)
            allocation.host &= not device

    def __exit__(self, *exception):
        self._refs.clear()  # what is freed from now on outlived what was watched
        return super().__exit__(*exception)

    @staticmethod
    def size(number):
        """A number of bytes as allocations have it; a subclass may convert it."""
        return number

    answer = staticmethod(answer)

    # Births and deaths.

    def _born(self, size, owner, operation, part):
        made = Allocation(size, self.now, owner, operation, part, host=self.host, stream=self.stream)
        self.allocations.append(made)
        self.changes.append(Change(made, "birth"))
        return made

    def _died(self, allocation):
        allocation.death = self.now
        self.changes.append(Change(allocation, "death"))

    def _follow(self, storage, owner, operation, part):
        address = storage._cdata
        self._live[address] = self._born(self.size(storage.nbytes()), owner, operation, part)
        self._refs[address] = weakref.ref(storage, lambda _: self._freed(address))

    def _freed(self, address):
        allocation = self._live.pop(address)
        self._weights.discard(address)  # where another tensor will be
        self.values.forget(address)
        if allocation.death is None:  # else its bytes were freed before
            self._died(allocation)
        del self._refs[address]

    def resized(self, storage) -> None:
        """Note that a storage was resized: FSDP frees its bytes and takes new ones while the tensor stays."""
        before = self._live.get(storage._cdata)
        if before is None or (before.death is None and before.bytes == storage.nbytes()):
            return
        if before.death is None:
            self._died(before)
        if storage.nbytes():
            self.operations.append(("resize_", self.phase, before.owner))
            self._live[storage._cdata] = self._born(storage.nbytes(), before.owner, "resize_", before.part)

    def making(self, part: str, owner: str | None = None):
        """A context in which new tensors belong to that part and owner; by default the owner stays as it is."""
        return mock.patch.object(self, "_making", (part, self._making[1] if owner is None else owner))

    def on_host(self):
        """A context in which new tensors, which are on meta too, count as in the memory of the CPU."""
        return mock.patch.object(self, "host", True)

    def is_on_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor counts as in the memory of the CPU."""
        made = self._live.get(tensor.untyped_storage()._cdata)
        return made is not None and made.host

    # Operations.

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        interrupts.check()
        kwargs = kwargs or {}
        if self.opened and any(issubclass(t, self.opened) for t in types):
            if func.overloadpacket in _IN_PLACE and not _moves(args):
                return None
            if func is not aten._foreach_sqrt.default:
                return NotImplemented  # then it runs on the tensors that it is made of, and is seen here
            args = ([t._local_tensor for t in args[0]],)  # at once: PyTorch would plan it for each of hundreds
        elif any(hasattr(t, "__tensor_flatten__") for t in types if t not in self.asked):
            return NotImplemented  # a tensor made of others asks for what it needs by itself, and that is seen here
        if func in IN_THE_OPEN:
            return self._in_the_open(IN_THE_OPEN[func], args, kwargs)
        if self.phase == "backward" and not torch.is_grad_enabled():
            if func is aten.add.Tensor and not kwargs and _holders(args[0]) == self._sole:
                # Where two gradients meet, autograd adds the second to the first in place if nobody else holds the first.
                # Under a dispatch mode it dares not, and would ask for a third tensor that a real step never has.
                return args[0].add_(args[1])
            if func in _INTO and self._is_new_zeros(args[0]):
                # The backwards of indexing, of gather and of topk fill their zeros in place (`index_backward`,
                # FunctionsManual.cpp; `gather_backward`, TensorAdvancedIndexing.cpp; `value_selecting_reduction_backward`,
                # ReduceOpsUtils.h), and dare not either.
                return self.__torch_dispatch__(_INTO[func], types, args, kwargs)
        if func.overloadpacket in _IN_PLACE and args[0][0].is_meta:
            return None  # nothing is allocated, and a check of hundreds of shapes would cost more than the rest
        if func.name() in _COPIES:
            return None
        if self.values and (known := self._by_known_masks(func, types, args, kwargs)) is not None:
            return known
        if func is aten._local_scalar_dense.default and args[0].is_meta and self._updates():
            return 0.0  # the scaler's count of infinite gradients, which is none; norms, of an optimizer
        if self.phase == "forward":
            self._check(func, args)
        if func is aten._to_copy.default and self._making and kwargs.get("device") == torch.device("cpu"):
            with self.on_host():  # FSDP sends a gradient there
                return self.__torch_dispatch__(aten.clone.default, types, args)
        out = self._result(func, args, kwargs)
        if product := self.products.get(func.overloadpacket):
            self.flops += product(*args, **kwargs, out_val=out)
        self._note(func, args, out)
        return out

    def _in_the_open(self, run, args, kwargs):
        TorchDispatchMode.__enter__(self)
        try:
            return run(*args, **kwargs)
        finally:
            TorchDispatchMode.__exit__(self, None, None, None)

    def _by_known_masks(self, func, types, args, kwargs):
        """What an operation returns that CUDA runs by the indices of what a mask finds; None for any other, or where it is not known.

        The indices are made first, and held as long as it runs.
        """
        if func is aten.masked_scatter_backward.default and self.values.of(args[1]) is not None:
            return self._in_the_open(masked_scatter_backward, args, kwargs)
        if func is aten.masked_select.default and (count := self.values.count(args[1], args[0].shape)) is not None:
            found = torch.empty(count, max(args[0].dim(), args[1].dim()), dtype=torch.int64, device="meta")
            self._note(aten.nonzero.default, (args[1],), found)
            self._note(func, args, out := args[0].new_empty(count))
            return out
        if not self.values.masks(func, args):
            return None
        indices = []
        for one in args[1]:
            if one is None or one.dtype is not torch.bool:
                indices.append(one)
            else:
                indices += self.__torch_dispatch__(aten.nonzero.default, types, (one,)).unbind(1)
        return self.__torch_dispatch__(func, types, (args[0], indices, *args[2:]), kwargs)

    def _answered(self, func, args, kwargs):
        return ANSWERS[func](*args, **kwargs) if func in ANSWERS else self.answer(func, args, kwargs)

    def _result(self, func, args, kwargs):
        try:
            if self.values.follows(func, args):
                return self.values.run(func, args, kwargs, self._answered)
            return self._answered(func, args, kwargs)
        except (NotImplementedError, RuntimeError) as error:
            if isinstance(error, NotImplementedError) or _VALUES & set(func.tags):
                raise self._refused(
                    f"needs the values in a tensor ({func}), and in a dry run there are none",
                    "control flow, sizes and copies that depend on shapes alone",
                ) from error
            raise

    def _note(self, func, args, out):
        """Follow what an operation made, and count what its kernel takes while it runs."""
        born = []
        for leaf in (out,) if isinstance(out, torch.Tensor) else tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.is_meta and not isinstance(leaf, self.unseen):
                storage = self._storage(leaf)
                if storage._cdata not in self._live:
                    born.append(storage)
        part, owner = self._making or (None, self._owner())
        if not born:
            return
        name = func.overloadpacket.__name__
        self.operations.append((name, self.phase, owner))
        part = part or self._part(func, args, owner)
        for storage in born:
            self._follow(storage, owner, name, part)
        for place in ON_HOST.get(func, ()):
            self._live[out[place].untyped_storage()._cdata].host = True
        sizes = SCRATCH[func](*args) if func in SCRATCH else ()
        for size in sizes if isinstance(sizes, tuple) else (sizes,):
            self._died(self._born(self.size(size), owner, name, part))

    def _storage(self, tensor):
        try:
            return tensor.untyped_storage()
        except NotImplementedError as error:
            raise self._refused(
                f"makes a tensor of layout {tensor.layout}, which keeps its numbers in other tensors",
                "torch.strided, as of an Embedding with sparse=False",
            ) from error

    def _is_new_zeros(self, tensor):
        allocation = self._live.get(tensor.untyped_storage()._cdata)
        return allocation is not None and allocation.operation in _ZEROS and allocation.birth == self.now

    def _check(self, func, args):
        """Raise where CUDA would, for devices and for a product's data types: kernels for meta do not always check them."""
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        strays = [t for t in tensors if not t.is_meta and t.dim()]
        if strays and any(t.is_meta for t in tensors) and func.overloadpacket not in _CROSSING:
            raise self._refused(
                f"gives {func} a tensor on device {strays[0].device}",
                "the device of the other tensors, which stand on meta (name it: device=x.device)",
            )
        if func.overloadpacket not in _ONE_TYPE:
            return
        found = {t.dtype: None for t in tensors if t.is_floating_point() or t.is_complex()}
        if len(found) > 1:
            raise self._refused(
                f"gives {func} tensors of {' and '.join(map(str, found))}",
                "one data type, by a cast of the input or by a precision that casts",
            )

    def _owner(self):
        again = len(self._modules) > 1  # a module's forward runs, if need be once more in backward
        node = torch._C._current_autograd_node()
        if self.phase == "backward" and node is not None and not again:
            return self._owner_of_node.get(node._sequence_nr(), "")
        owner = "loss" if self.phase == "backward" and not again else self._modules[-1]
        number = torch._C._autograd._get_sequence_nr() - 1
        if self.opened and self._is_loss(owner):  # a divided loss makes nodes of its own within one operation
            for between in range(self._last_node + 1, number):
                self._owner_of_node.setdefault(between, owner)
        self._last_node = max(number, self._last_node)
        self._owner_of_node.setdefault(number, owner)
        self._place_of_node.setdefault(number, len(self.operations))
        return owner

    def loss_of(self, given) -> None:
        """Note a call of a loss function: the module that made its scores is a head, and the loss is what follows."""
        frame = -2 if self._modules[-1] in self._losses else -1
        caller = self._modules[frame]
        if self.phase != "forward" or not isinstance(given, torch.Tensor) or self._is_loss(caller):
            return
        self._modules[frame] = "loss"
        node = _product(given)
        number = -1 if node is None else node._sequence_nr()
        head, place = self._owner_of_node.get(number), self._place_of_node.get(number, len(self.operations))
        if head is None:
            return
        if head != caller:
            self.heads.add(head)
        renamed = set()
        for i, (name, phase, owner) in enumerate(self.operations[place:], place):
            if owner == caller and phase == "forward":
                self.operations[i] = name, phase, "loss"
                renamed.add(i)
        for n in range(number, torch._C._autograd._get_sequence_nr()):
            if self._owner_of_node.get(n) == caller:
                self._owner_of_node[n] = "loss"
        for a in self.allocations:
            if a.birth in renamed and a.owner == caller:
                a.owner = "loss"
            if a.part == "activations" and (a.owner == "loss" or a.owner in self.heads):
                a.part = "loss"

    def _updates(self):
        """Whether an optimizer is at work."""
        return self.phase in ("rest", "optimizer step") or (self._making or ("",))[0] == "optimizer"

    def _refused(self, does, allowed):
        """The error that the running module cannot be followed."""
        who = f"module {self._modules[-1]!r}" if self._modules[-1] else "the model itself"
        return refused(f"{who} {does}", allowed)

    def _is_loss(self, owner):
        return is_loss(owner) or owner in self.heads

    def _part(self, func, args, owner):
        if self.phase in ("rest", "optimizer step"):
            return "optimizer"
        if func is aten._to_copy.default and args[0].untyped_storage()._cdata in self._weights:
            return "casts"
        if self._is_loss(owner):
            return "loss"
        again = len(self._modules) > 1 or torch.is_grad_enabled()  # what is recomputed stands for forward's
        return "transient" if self.phase == "backward" and not again else "activations"

    @contextmanager
    def watching(self, module):
        """A context in which each operation's owner is the submodule of `module` that runs it."""

        def leave_module(name):
            self._modules.pop()
            if self._is_loss(name) and len(self._modules) > 1:
                self._modules[-1] = "loss"  # what the head's caller does with the logits

        with ExitStack() as stack:
            for name, child in module.named_modules():
                name = name.replace("_fsdp_wrapped_module.", "").removesuffix("._fsdp_wrapped_module")
                if isinstance(child, nn.modules.loss._Loss):
                    self._losses.add(name)
                    self.heads.add(name)
                enter = child.register_forward_pre_hook(lambda *_, name=name: self._modules.append(name))
                leave = child.register_forward_hook(lambda *_, name=name: leave_module(name), always_call=True)
                stack.callback(enter.remove)
                stack.callback(leave.remove)
            yield


def _moves(lists):
    """Whether an operation on lists of `DTensor`s must redistribute one first, since the placements differ."""
    first, *others = (given for given in lists if isinstance(given, list | tuple))
    places = [t.placements for t in first]
    pairs = (pair for given in others for pair in zip(given, places, strict=True))
    return any(getattr(tensor, "placements", place) != place for tensor, place in pairs)


def made_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors that a tensor is: of a quantized one its data and its scales, of any that wraps others theirs."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    inner = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
    return [plain for one in inner if isinstance(one, torch.Tensor) for plain in made_of(one)]


def is_opaque(tensor) -> bool:
    """Whether a tensor handles operations itself and does not reveal the tensors in it."""
    if isinstance(tensor, FakeTensor) or hasattr(tensor, "__tensor_flatten__"):
        return False
    return type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl


def is_loss(owner: str) -> bool:
    """Whether a module's path ends in the name of the output head or the loss."""
    return owner.rpartition(".")[2] in ("head", "lm_head", "loss")


#: Beginnings of autograd's names for the backward of products and convolutions.
_PRODUCTS = ("Mm", "Addmm", "Bmm", "Baddbmm", "Convolution")


def _product(tensor):
    """Autograd's node of the product behind a tensor, before reshapes, casts and scaling; None where there is none."""
    node = tensor.grad_fn
    for _ in range(32):  # far enough
        if node is None or node.name().startswith(_PRODUCTS):
            return node
        node = next((n for n, _ in node.next_functions if n is not None), None)
    return None


def _holders(tensor):
    """The values of the three conditions for adding in place, in `torch/csrc/autograd/input_buffer.cpp`."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata), tensor._use_count(), _is_dense(tensor)


def _is_dense(tensor):
    """Whether the elements are contiguous in some order of the dimensions."""
    step = 1
    # Of a letter, the number that stands for it.
    known = [[n.node.hint if isinstance(n, torch.SymInt) else n for n in ns] for ns in (tensor.stride(), tensor.size())]
    for stride, size in sorted(pair for pair in zip(*known, strict=True) if pair[1] != 1):
        if stride != step:
            return False
        step *= size
    return True


@cache
def sole_holder():
    """The value of `_holders`, inside a dispatch mode, of a gradient that only autograd's buffer holds: measured, not assumed."""
    seen = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is aten.add.Tensor and not torch.is_grad_enabled():
                seen.append(_holders(args[0]))
            return func(*args, **(kwargs or {}))

    with torch.enable_grad(), Count():
        x = torch.empty(1, device="meta", requires_grad=True) * 2
        y = x + torch.relu(x)  # x's gradient arrives from the sum, then from relu
        (y * y).sum().backward()
    return seen[-1]
