"""What a function saves for backward, tensor by tensor: as written, and as `torch.compile` cuts it. No GPU and no data are needed."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from operator import getitem
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.fx import Node
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry

from .tracker import made_of

aten = torch.ops.aten
_VIEWS = {getattr(aten, name) for name in "view detach t transpose permute expand alias _unsafe_view reshape".split()}


@dataclass(frozen=True)
class Saved:
    """A tensor that forward saves for backward.

    Attributes:
        made: what made it: an operation, `parameter`, `input`, or empty where it is not known.
        shape, dtype: as saved. bytes: of its storage; of a compiled function's, of the tensor.
    """

    made: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


def size(tensor: Tensor) -> int:
    """Bytes of the storages that a tensor has, each once; of a quantized one its scales' too."""
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in made_of(tensor)}.values())


def eager(module: nn.Module, *inputs: Tensor) -> list[Saved]:
    """What autograd saves as the module is called: each storage once, as it comes."""
    known = {p.untyped_storage()._cdata: "parameter" for p in module.parameters()}
    known |= {x.untyped_storage()._cdata: "input" for x in inputs}
    found = {}

    def pack(tensor):
        for t in made_of(tensor):
            storage = t.untyped_storage()
            found.setdefault(storage._cdata, (t, Saved(known.get(storage._cdata, ""), *_looks(t), storage.nbytes())))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = module(*inputs)
    del out
    return [saved for _, saved in found.values()]


def compiled(make: Callable[[], nn.Module], *inputs: Tensor, budget: float = 1.0) -> tuple[list[Saved], int]:
    """(what a compiled module saves, FLOPs of backward's products): as Inductor has PyTorch's partitioner divide AOTAutograd's graph.

    Operations are decomposed and the joint graph is simplified as `torch.compile` does by default; what it does on a GPU alone, such
    as padding matrices, is left out. On an H200 forward left these bytes, and the loss (`tests/dryrun/test_compiled.py`). A tensor that several views show is counted once. FLOPs are those of `torch.utils.flop_counter`: matrix products and attention.

    Args:
        make: gives the module, whose output is the loss, or is added up to one. inputs: of the CPU; what they hold is not looked at.
        budget: `torch._functorch.config.activation_memory_budget`, from 1 (no matrix product is recomputed) to 0 (only inputs are
            saved).

    Raises:
        ValueError: for a budget out of range.
    """
    from torch._functorch import config
    from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
    from torch._inductor import compile_fx, decomposition

    if not 0 <= budget <= 1:
        raise ValueError(f"compiled.budget: {budget!r} is not a number from 0 to 1")
    kept: dict[tuple, Saved] = {}
    given: list[str] = []
    flops: list[int] = []

    def forward(graph, _):
        *_, out = graph.graph.nodes
        places = {node: given[i] for i, node in enumerate(graph.graph.find_nodes(op="placeholder")) if i < len(given)}
        for node in out.args[0][1:]:  # the first is the module's output
            value, source = node.meta.get("val"), _source(node)
            if isinstance(value, Tensor) and not _on_host(source):
                name = places.get(source) or getattr(source.target, "__name__", str(source.target)).partition(".")[0]
                kept.setdefault(
                    (source.name, value.storage_offset(), value.numel()), Saved(name, *_looks(value), value.nbytes)
                )
        return make_boxed_func(graph.forward)

    def backward(graph, _):
        flops.append(sum(map(_flops, graph.graph.nodes)))
        return make_boxed_func(graph.forward)

    def backend(graph, asked):
        given[:] = ["parameter" if isinstance(x, nn.Parameter) else "input" for x in asked]
        table = dict(decomposition.select_decomp_table())
        table[aten.native_layer_norm.default] = _norm(table[aten.native_layer_norm.default])
        ways = {"fw_compiler": forward, "bw_compiler": backward, "partition_fn": compile_fx.partition_fn}
        return aot_module_simplified(graph, asked, **ways, decompositions=table)

    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(mock.patch.object(F, "scaled_dot_product_attention", _attention))
        stack.enter_context(
            config.patch(activation_memory_budget=budget, activation_memory_budget_runtime_estimator="flops")
        )
        torch._dynamo.reset()
        stack.callback(torch._dynamo.reset)
        torch.compile(make(), backend=backend, fullgraph=True, dynamic=False)(*inputs).sum().backward()
    return list(kept.values()), flops[0]


def _looks(tensor):
    return tuple(map(int, tensor.shape)), str(tensor.dtype).removeprefix("torch.")


def _norm(decomposed):
    """A layer norm's decomposition as on CUDA, where statistics are in 32 bits; on the CPU they are of the input's type."""

    def norm(x, *more):
        out, mean, rstd = decomposed(x.float(), *more)
        return out.to(x.dtype), mean, rstd

    return norm


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """CUDA's kernel for attention, flash in 16 bits and memory-efficient in 32: fake tensors need only its shapes."""
    if attn_mask is not None:
        raise ValueError(
            "compiled.make: a module whose attention is given a mask; which kernel CUDA takes is not followed here"
        )
    if query.dtype.itemsize == 2:
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal)[0]
    if enable_gqa:
        raise ValueError(
            "compiled.make: a module whose heads share keys in 32 bits, for which CUDA has no fused kernel"
        )
    return aten._scaled_dot_product_efficient_attention(query, key, value, None, True, dropout_p, is_causal)[0]


def _on_host(node):
    """Whether it is memory-efficient attention's random state, which CUDA has on the CPU."""
    if node.target is not getitem:
        return False
    made, place = node.args
    return made.target is aten._scaled_dot_product_efficient_attention.default and place > 1


def _flops(node):
    count = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if count is None:
        return 0
    args, kwargs = tree_map_only(Node, lambda n: n.meta["val"], (node.args, node.kwargs))
    return count(*args, **kwargs, out_val=node.meta["val"])


def _source(node):
    """The node that made a view's bytes; of any other node itself."""
    while node.op == "call_function" and getattr(node.target, "overloadpacket", None) in _VIEWS:
        node = node.args[0]
    return node
