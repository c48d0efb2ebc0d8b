"""What forward saves under `torch.compile`: the partitioner's choice, without a GPU and without compiling a kernel."""

from unittest import mock

import torch
from torch._subclasses import FakeTensorMode
from torch.fx import Node
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry

from ..ask.setup import Setup
from ..catalog import Model
from ..reference import GPT
from ..rules import CUT, check

aten = torch.ops.aten
_VIEWS = {getattr(aten, name) for name in "view detach t transpose permute expand alias _unsafe_view reshape".split()}


def partitioned(model: Model, setup: Setup, budget: float = 1.0) -> tuple[int, int]:
    """(bytes that forward saves for backward without weights and inputs, FLOPs of backward's products) of a compiled GPT.

    PyTorch's min-cut partitioner divides AOTAutograd's joint graph, as `torch.compile` does on a GPU. The peak of a compiled step
    depends on Inductor's buffers, and is not given. FLOPs are those of `torch.utils.flop_counter`: matrix products and attention.

    Args:
        model, setup: a GPT in fp32 with flash attention; the setup's batch and sequence are used.
        budget: `torch._functorch.config.activation_memory_budget`, from 1 (no matrix product is recomputed) to 0 (only inputs are
            saved).

    Raises:
        ValueError: for other precisions or attentions, and a budget out of range.
    """
    from torch._functorch import config
    from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    check(CUT, setup)
    if not 0 <= budget <= 1:
        raise ValueError(f"partitioned.budget: {budget!r} is not a number from 0 to 1")
    kept, flops = {}, []

    def forward(graph, _):
        *_, out = graph.graph.nodes
        for node in out.args[0][1:]:
            value, source = node.meta.get("val"), _source(node)
            if isinstance(value, torch.Tensor) and source.op != "placeholder":
                kept[source.name, value.storage_offset(), value.numel()] = value.nbytes
        return make_boxed_func(graph.forward)

    def backward(graph, _):
        flops.append(sum(map(_flops, graph.graph.nodes)))
        return make_boxed_func(graph.forward)

    def backend(graph, inputs):
        cut = min_cut_rematerialization_partition
        return aot_module_simplified(graph, inputs, fw_compiler=forward, bw_compiler=backward, partition_fn=cut)

    settings = config.patch(activation_memory_budget=budget, activation_memory_budget_runtime_estimator="flops")
    attention = mock.patch.object(F, "scaled_dot_product_attention", _attention)
    with FakeTensorMode(allow_non_fake_inputs=True), attention, settings:
        torch._dynamo.reset()
        compiled = torch.compile(GPT(model, setup), backend=backend, fullgraph=True, dynamic=False)
        tokens = torch.zeros(setup.batch, setup.sequence, dtype=torch.int64)
        compiled(tokens, tokens).backward()
        torch._dynamo.reset()
    return sum(kept.values()), flops[0]


def _attention(query, key, value, is_causal=False, dropout_p=0.0, **_):
    """CUDA's kernel for attention: fake tensors need only its shapes."""
    return aten._scaled_dot_product_efficient_attention(query, key, value, None, True, dropout_p, is_causal)[0]


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
