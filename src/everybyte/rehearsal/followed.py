"""What a script computes of what is known: on the CPU as well, by PyTorch's own operations, until it decides a size or is read.

From the first time on that something is known; before that, operators run as they are. In-place changes that are not followed make a
tensor unknown again: its version tells. So does what ranks exchange.
"""

import functools
import threading
from collections.abc import Callable
from contextlib import contextmanager

from .known import BYTES, CONSTANT, DATA, KINDS, Known, most
from .others import override

#: What is followed where its tensors are known.
FOLLOWED = """
    eq.Scalar eq.Tensor ne.Scalar ne.Tensor lt.Scalar lt.Tensor le.Scalar le.Tensor gt.Scalar gt.Tensor ge.Scalar ge.Tensor
    bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor bitwise_not logical_and logical_or logical_xor logical_not
    bitwise_and_.Tensor bitwise_or_.Tensor where.self masked_fill.Scalar masked_fill.Tensor masked_fill_.Scalar masked_fill_.Tensor
    add.Tensor sub.Tensor mul.Tensor div.Tensor div.Tensor_mode floor_divide remainder.Tensor rsub.Tensor neg abs ceil floor
    add_.Tensor sub_.Tensor mul_.Tensor minimum maximum clamp clamp_min clamp_max isin.Tensor_Tensor tril triu
    sum sum.dim_IntList prod prod.dim_int any any.dim all all.dim max min amax amin aminmax cumsum cumprod
    count_nonzero count_nonzero.dim_IntList bincount histc repeat_interleave.Tensor repeat cat stack constant_pad_nd flip roll
    sort sort.stable index.Tensor index_select index_put_ gather scatter.value scatter.src scatter_.value scatter_.src scatter_add
    scatter_add_ clone arange.start_out fill_.Scalar fill_.Tensor zero_
""".split()
#: What makes a tensor of one value, and which: its second argument, where none stands here. What writes one, or another, over all there is.
MADE = {"zeros": 0, "zeros_like": 0, "ones": 1, "ones_like": 1, "full": None, "full_like": None}
OVER = ("fill_", "zero_", "copy_")
#: What copies from the CPU, and to it.
SENDS = ("copy_", "_to_copy")


def kernel(torch, name: str, key: str = "CUDA") -> Callable:
    """What an operator runs on the GPU now, called with the dispatcher's keys and its arguments."""
    return torch.library.get_kernel(name if "::" in name else f"aten::{name}", key).call_boxed


class Followed:
    """Follows what is computed of known tensors.

    Args:
        library: in which operators are overridden. seen: called with what was found, of how many, and whence that is known.
    """

    def __init__(self, torch, library, known: Known, seen: Callable):
        self.torch, self.library, self.known, self.seen = torch, library, known, seen
        self.within, self.begun = threading.local(), False
        for name in SENDS:
            override(library, name, self._followed(name), keys=True)
        if torch.distributed.is_available():
            self.functional = torch.library.Library("_c10d_functional", "IMPL")
            for name in ("all_reduce", "broadcast"):
                override(self.functional, name, self._exchanged(name), keys=True)

    def begin(self) -> None:
        """Follow all: something is known."""
        if self.begun:
            return
        self.begun = True
        for name in FOLLOWED:
            override(self.library, name, self._followed(name), keys=True)
        for name, value in MADE.items():
            override(self.library, name, self._made(name, value), keys=True)
        self._read_what_is_known()

    def _whole(self, tensor, kind=None):
        """Whether a tensor is of whole numbers or booleans, if of that kind, and no more than are followed."""
        kind = kind or tensor.dtype
        few = BYTES if kind in (self.torch.uint8, self.torch.int8) else most(DATA)
        return not (kind.is_floating_point or kind.is_complex) and tensor.numel() <= few

    @contextmanager
    def _deeper(self):
        """Within an operator that is followed as a whole: what it writes on its way is its own."""
        deep = getattr(self.within, "deep", 0)
        self.within.deep = deep + 1
        try:
            yield
        finally:
            self.within.deep = deep

    def _made(self, name, value):
        make, torch = kernel(self.torch, name), self.torch

        def made(keys, *args, **kwargs):
            with self._deeper():
                found = make(keys, *args, **kwargs)
            if found.is_cuda and self._whole(found):
                one = args[1] if value is None else value
                self.known.tell(found, torch.full(found.shape, one, dtype=found.dtype, device="cpu"), CONSTANT)
            return found

        return made

    def _read_what_is_known(self):
        """Let `item`, `int` and their like read what is known."""
        look = kernel(self.torch, "_local_scalar_dense")

        def read(keys, one):
            content = self._readable(one)
            return look(keys, one) if content is None else content.item()

        override(self.library, "_local_scalar_dense", read, keys=True)

    def _readable(self, tensor):
        """The content of a tensor that is read. Zeros that were made on the GPU may have been written by a kernel since: unknown."""
        content, kind = self.known.of(tensor, constants=True), self.known.kind(tensor)
        if content is None or kind == CONSTANT and not content.any():
            return None
        if kind != CONSTANT:
            self.seen(None, None, kind)
        return content

    def _followed(self, name):
        run, torch = kernel(self.torch, name), self.torch
        short, _, overload = name.partition(".")
        call = getattr(getattr(torch.ops.aten, short), overload or "default")
        tensors = [argument.type.kind() == "TensorType" for argument in call._schema.arguments]

        def follow(keys, *args, **kwargs):
            args = [
                self._number(one, args) if t and not torch.is_tensor(one) else one
                for t, one in zip(tensors, args, strict=False)
            ]
            if not self._concerns(short, args, kwargs):
                return run(keys, *args, **kwargs)
            if short == "copy_" and not args[0].is_cuda:
                content = self._readable(args[1])
                return run(keys, *args, **kwargs) if content is None else args[0].copy_(content)
            if short == "_to_copy" and torch.device(kwargs.get("device") or "cuda").type == "cpu":
                content = self._readable(args[0])
                return run(keys, *args, **kwargs) if content is None else call(content, **kwargs)
            told = self._contents(short, [*args], kwargs)
            with self._deeper():
                found = run(keys, *args, **kwargs)
            made = [found] if torch.is_tensor(found) else [*found]
            if told is None or any(one.numel() > most(told[-1]) for one in made):
                if short.endswith("_"):
                    self.known.forget(args[0])
            else:
                self._tell(short, made, call, *told)
            return found

        return follow

    def _tell(self, name, made, call, args, kwargs, kind):
        """Compute the content of what was made, and note it; where the CPU cannot, it is unknown."""
        changed = name.endswith("_")
        try:
            content = call(*args, **kwargs)
        except (RuntimeError, IndexError):
            if changed:
                self.known.forget(made[0])
            return
        content = [content] if self.torch.is_tensor(content) else content
        for one, what in zip(made, content, strict=True):
            if kind != CONSTANT or self._whole(one):
                self.known.tell(one, what.to(one.dtype), kind, changed)

    def _concerns(self, name, args, kwargs):
        """Whether an operator works with something that may be known, or will be."""
        if name in OVER and args[0].is_cuda and self._whole(args[0]):
            return not getattr(self.within, "deep", 0)
        if name == "arange":
            return self._whole(kwargs["out"])
        if name == "_to_copy" and not args[0].is_cuda:
            return self._whole(args[0], kwargs.get("dtype"))
        return any(self.known.has(one) for one in self._on_the_gpu([*args, *kwargs.values()]))

    def _on_the_gpu(self, arguments):
        for one in arguments:
            if isinstance(one, list | tuple):
                yield from self._on_the_gpu(one)
            elif self.torch.is_tensor(one) and one.is_cuda:
                yield one

    def _number(self, one, args):
        """A tensor for what was a number in Python, and comes here as one again: of a type that changes no result's."""
        torch = self.torch
        kind = next((other.dtype for other in args if torch.is_tensor(other)), None)
        if kind is None:
            return torch.tensor(one, dtype=torch.float64 if isinstance(one, float) else None, device="cpu")
        if isinstance(one, complex) and kind.is_floating_point:
            kind = kind.to_complex()
        real = isinstance(one, int | float) and kind.is_floating_point
        kept = kind.is_complex or real or isinstance(one, int) and kind.itemsize >= 4
        return torch.tensor(one, dtype=kind if kept else None, device="cpu")

    def _contents(self, name, args, kwargs):
        """(the arguments with the content of their tensors in place of these, by name too, whence it is); None where one is not known."""
        torch, kinds = self.torch, set()
        if name == "arange":
            out = kwargs["out"]
            return args, {"out": torch.empty(out.shape, dtype=out.dtype, device="cpu")}, CONSTANT
        if name in SENDS and not args[name == "copy_"].is_cuda:
            self.begin()
            kinds.add(DATA)
        if name in OVER:
            kinds.add(CONSTANT)
            args[0] = torch.empty(args[0].shape, dtype=args[0].dtype, device="cpu")
        unknown = self._scattered(args, kinds) if name.startswith("scatter") else False

        def content(one):
            nonlocal unknown
            if not torch.is_tensor(one) or not one.is_cuda:
                return one
            kinds.add(self.known.kind(one))
            found = self.known.of(one, constants=True)
            unknown |= found is None
            return found

        args, kwargs = torch.utils._pytree.tree_map(content, (args, kwargs))
        kind = max(kinds, key=KINDS.index, default=CONSTANT)
        if unknown or kind in (CONSTANT, DATA) and torch.cuda.is_current_stream_capturing():
            return None  # a graph computes again what is known of once
        if name == "sum" and kind == CONSTANT and args[0].dtype == torch.bool:
            return None  # a mask, of which --rows says how many it finds
        if name == "histc":
            args[0] = args[0].double()  # on the CPU it counts no whole numbers
        if name.endswith("_") and name not in OVER:
            args[0] = args[0].clone()
        return args, kwargs | ({"device": "cpu"} if "device" in kwargs else {}), kind

    def _scattered(self, args, kinds):
        """Where a router says: what is scattered, where it is not known, is taken for ones; what is scattered into, for the opposite."""
        torch, of = self.torch, functools.partial(self.known.of, constants=True)
        value, kind = args[3], self.known.kind(args[2])
        if kind in (CONSTANT, DATA) or of(args[2]) is None:
            return False
        kinds.add(kind)
        if torch.is_tensor(value) and of(value) is None:
            value = args[3] = torch.ones(value.shape, dtype=value.dtype, device="cpu")
        before = of(args[0])
        empty = torch.zeros if torch.is_tensor(value) or value else torch.ones
        args[0] = empty(args[0].shape, dtype=args[0].dtype, device="cpu") if before is None else before
        return False

    def _exchanged(self, name):
        """A functional collective: it clones what it exchanges, and the clone is not what it was."""
        run = kernel(self.torch, f"_c10d_functional::{name}")

        def exchange(keys, *args, **kwargs):
            found = run(keys, *args, **kwargs)
            self.known.forget(found)
            return found

        return exchange
