"""What a compiled function asks of CUDA's allocator: Inductor's own code for it, written without a GPU or Triton, and its kernels left out."""

import ast
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from types import CodeType

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map

from ..ask.choices import OPTIMIZERS
from ..reference.adapters import package
from .cuda import patched

#: The GPU that code is written for: an H200's numbers. Rehearsals of an H200 and of a T4 found the same buffers.
_GPU = {"multi_processor_count": 132, "major": 9, "regs_per_multiprocessor": 65536, "max_threads_per_multi_processor": 2048,
        "max_threads_per_block": 1024, "warp_size": 32}  # fmt: skip
#: Bytes: Inductor's code takes for granted that a tensor starts at a multiple, where the first that it was written for did.
_ALIGNMENT = 16
#: What a function was given -> the lines of its code that make tensors, and that drop them.
_FOUND: dict[tuple, CodeType] = {}


class _Written(BaseException):
    """Raised where the code is written, to go no further."""


def torchao_compiled(setup):
    """A context in which torchao's optimizers take the memory of their compiled step, tensor by tensor."""
    if OPTIMIZERS[setup.optimizer].package != "torchao":
        return nullcontext()
    package("torchao", f"Setup.optimizer: {setup.optimizer!r}")
    from torchao.optim import adam, subclass_4bit, subclass_8bit

    return patched(*((module, "torch", _Torch(setup)) for module in (adam, subclass_4bit, subclass_8bit)))


class _Torch:
    """PyTorch as torchao's optimizers see it: compiled functions make and drop their buffers, and compute nothing."""

    def __init__(self, setup):
        self._setup = setup

    def __getattr__(self, name):
        return getattr(torch, name)

    def compile(self, function, **_):
        return partial(self._run, function)

    def _run(self, function, *arguments):
        if any(isinstance(x, DTensor) and x.to_local().storage_offset() * x.itemsize % _ALIGNMENT for x in arguments):
            raise ValueError(
                f"Setup.gpus: {self._setup.gpus} with optimizer {self._setup.optimizer!r}: a gradient starts at no multiple of {_ALIGNMENT} "
                "bytes of what FSDP reduces, and the compiled step may copy it, which is not counted; allowed: GPUs whose shares are "
                "multiples of 4 numbers, or precision 'bf16-master'; everybyte rehearse runs a script with it"
            )
        run(function, *arguments)

    def tensor(self, numbers, dtype=None, device=None):
        """On device meta `torch.tensor` makes what no mode sees."""
        if torch.device(device or "cpu").type == "meta":
            return torch.empty(len(numbers), dtype=dtype, device=device)
        return torch.tensor(numbers, dtype=dtype, device=device)


def run(function: Callable, *arguments) -> None:
    """Make and drop, in order, what the compiled function does. It returns nothing; tensors on device meta stand for CUDA's."""
    exec(lines(function, *arguments), {"torch": torch, "empty_strided_cuda": _empty})  # nothing else makes a buffer


def lines(function: Callable, *arguments) -> CodeType:
    """Of the code that Inductor writes for CUDA, the lines that make tensors and that drop them."""
    key = (function.__module__, function.__qualname__, *map(_looks, arguments))
    if key not in _FOUND:
        with ThreadPoolExecutor(1) as alone:  # modes are a thread's: here none follows what is made
            _FOUND[key] = _of_buffers(alone.submit(code, function, *arguments).result())
    return _FOUND[key]


def code(function: Callable, *arguments) -> str:
    """The module that Inductor writes for CUDA, as `torch.compile(fullgraph=True, dynamic=False)` would run it."""
    from torch._inductor import compile_fx, config

    found: list[str] = []

    def inner(graph, inputs, **options):
        with unset_fake_temporarily():
            inputs = _moved(graph, inputs)
        try:
            compile_fx.compile_fx_inner(graph, inputs, **options)
        except _Written as written:
            found.append(str(written))
        return lambda *_: ()

    backend = partial(compile_fx.compile_fx, inner_compile=inner)
    with _as_on_cuda(), warnings.catch_warnings(), config.patch(force_disable_caches=True), torch.no_grad():
        warnings.simplefilter("ignore")  # that nothing is cached
        torch._dynamo.reset()
        torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(*arguments)
        torch._dynamo.reset()
    (text,) = found
    return text


def _as_on_cuda():
    """A context in which Inductor writes code for a GPU, which is asked for nothing."""
    from torch._inductor import compile_fx, graph, scheduler
    from torch._inductor.runtime import hints
    from torch.utils import _triton

    gpu = hints.DeviceProperties(type="cuda", index=0, cc=90, **_GPU)

    def written(self):
        raise _Written(self.codegen()[0].value)

    return patched(
        (hints.DeviceProperties, "create", lambda device: gpu),
        (torch.cuda, "get_device_properties", lambda device=None: gpu),
        (torch.cuda, "get_device_capability", lambda device=None: (9, 0)),
        (compile_fx, "_check_triton_bf16_support", lambda graph: None),
        (scheduler, "has_triton", lambda *_: True),
        (_triton, "triton_hash_with_backend", lambda *_: ""),
        (graph.GraphLowering, "compile_to_module", written),
    )


def _moved(graph, inputs):
    """The inputs on CUDA in place of meta, and so what each node of the graph gives."""
    device = torch.device("cuda", 0)

    def moved(value):
        if not isinstance(value, FakeTensor) or value.device.type != "meta":
            return value
        there = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return FakeTensor(value.fake_mode, there, device)

    for node in graph.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = tree_map(moved, node.meta["val"])
        if getattr(node.kwargs.get("device"), "type", None) == "meta":
            node.kwargs = {**node.kwargs, "device": device}
    return [moved(x) for x in inputs]


def _of_buffers(text):
    """The lines of `call` that give a buffer a name or take one away, compiled."""
    (call,) = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == "call")
    said = [n for n in ast.walk(call) if isinstance(n, ast.Assign | ast.Delete)]
    kept = [n for n in said if all(isinstance(t, ast.Name) and t.id.startswith("buf") for t in n.targets)]
    return compile(ast.Module(sorted(kept, key=lambda n: n.lineno), []), "<Inductor>", "exec")


def _empty(shape, stride, dtype):
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def _looks(value):
    """What decides the code, of an argument."""
    if not isinstance(value, Tensor):
        return value
    names = value.__tensor_flatten__()[0] if hasattr(value, "__tensor_flatten__") else ()
    inner = tuple(_looks(getattr(value, name)) for name in names)
    return type(value), tuple(value.shape), value.stride(), value.dtype, value.device.type, inner
