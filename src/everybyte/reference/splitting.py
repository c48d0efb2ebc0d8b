"""Tensor parallelism of the book's reference models, by PyTorch's `parallelize_module`: which module is split which way.

| module | its weights | what comes in, what goes out |
|---|---|---|
| `token`, `position` | by rows: each GPU has a part of the vocabulary, of the positions | a sum over GPUs |
| `q`, `k`, `v`, `qkv`; `up`, `gate`, `gate_up` | by columns of W^T: some heads, some of the MLP's units | whole in, a part out |
| `out`, `down` | by rows of W^T | a part in, a sum over GPUs |
| a mixture: its `gate_up`, `down`; its `router` | each expert's as those of an MLP; whole | whole in, a sum over GPUs |
| norms | whole, on every GPU | tokens of its own (sequence parallelism), or all of them |
| `head` | by columns: a part of the vocabulary | whole in; logits stay divided (loss parallelism), or are gathered |

With sequence parallelism sums are scattered over tokens, and gathered once before attention and MLP; without it every GPU
has the sum. Every GPU routes all tokens alike, to its part of each expert. Sources: Shoeybi et al. 2019, arXiv:1909.08053; Korthikanti et al. 2022, arXiv:2205.05198; PyTorch's
`torch/distributed/tensor/parallel`, and the plan of its own test model (`testing/_internal/distributed/_tensor/common_dtensor.py`);
of mixtures torchtitan, `torchtitan/distributed/expert_parallel.py`, `TensorParallel`.
"""

from contextlib import nullcontext

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from ..ask.mesh import Mesh
from ..ask.setup import Setup

#: Of attention and MLP, the linear layers that are split by columns and by rows.
COLUMNS, ROWS = ("q", "k", "v", "qkv", "up", "gate", "gate_up"), ("out", "down")


class Whole(ParallelStyle):
    """A norm whose weights, as all others, are `DTensor`s, which optimizers take no mixture of: whole on every GPU."""

    def _apply(self, module: nn.Module, device_mesh) -> nn.Module:
        def keep(name, module, mesh):
            for name, weight in module.named_parameters(recurse=False):
                whole = DTensor.from_local(weight.detach(), mesh, [Replicate()], run_check=False)
                module.register_parameter(name, nn.Parameter(whole))

        return distribute_module(
            module,
            device_mesh,
            keep,
            lambda module, inputs, mesh: DTensor.from_local(inputs[0], mesh, [Replicate()], run_check=False),
            lambda module, output, mesh: output.to_local(),
        )


class OwnPart:
    """Of a module whose weights are `DTensor`s: forward reads what of them is this GPU's, and runs on tensors of its own.

    Attributes:
        gradients: what their gradients are, where they are not divided as the weights: placements. inside: whether forward runs.
    """

    gradients: tuple[Partial, ...] | None = None
    inside = False

    def forward(self, *args):
        self.inside = True
        try:
            return super().forward(*args)
        finally:
            self.inside = False

    def __getattr__(self, name):
        found = super().__getattr__(name)
        return found.to_local(grad_placements=self.gradients) if self.inside and isinstance(found, DTensor) else found


class SummedPart(OwnPart):
    """One whose weights are whole, and whose gradients are each GPU's part of a sum."""

    gradients = (Partial(),)


class Mixture(ParallelStyle):
    """Experts that are divided each, by columns and then by rows, and their router, which is whole.

    All tokens come in, and what goes out is a part of a sum. So are the gradients of the tokens, and of the router. Which tokens an
    expert gets, no `DTensor` says: forward runs on each GPU's own part.

    Args:
        between: how tokens stand before and after.
    """

    def __init__(self, between):
        self.between = between

    def _apply(self, module: nn.Module, device_mesh) -> nn.Module:
        if not hasattr(module, "own"):  # of which other GPUs have others: split where these are divided
            split_experts(module, device_mesh)
        _divide(module.router, {"weight": Replicate()}, device_mesh, SummedPart)
        return distribute_module(module, device_mesh, None, self._gathered, self._summed)

    def _gathered(self, module, inputs, mesh):
        (x,) = inputs
        if not isinstance(x, DTensor):
            x = DTensor.from_local(x, mesh, [self.between], run_check=False)
        return x.redistribute(mesh, [Replicate()]).to_local(grad_placements=[Partial()])

    def _summed(self, module, output, mesh):
        return (
            DTensor.from_local(output, mesh, [Partial()], run_check=False).redistribute(mesh, [self.between]).to_local()
        )


def split_experts(experts: nn.Module, device_mesh) -> None:
    """Each expert's gate and up by columns, its down by rows, over the GPUs of a one-dimensional device mesh; in place.

    Args:
        experts: has `gate_up`, (E, 2 F, H), and `down`, (E, H, F).
    """
    _regroup(experts.gate_up, (experts.gate_up.size(1) // 2,) * 2, device_mesh.size(), 1)
    _divide(experts, {"gate_up": Shard(1), "down": Shard(2)}, device_mesh, OwnPart)


def _divide(module, placements, device_mesh, kind):
    """Have a module's weights divided, and its forward read its own part of them."""
    for name, placement in placements.items():
        found = distribute_tensor(getattr(module, name), device_mesh, [placement])
        module.register_parameter(name, nn.Parameter(found))
    module.__class__ = type(kind.__name__ + type(module).__name__, (kind, type(module)), {})


def plan(module: nn.Module, ways: Mesh) -> dict[str, ParallelStyle]:
    """Path -> how that module is split. `module`: a `GPT` or a `Llama`."""
    sequence, loss = ways.sequence_parallel, ways.loss_parallel
    between = Shard(1) if sequence else Replicate()
    found: dict[str, ParallelStyle] = {}
    for path, child in module.named_modules():
        name = path.rpartition(".")[2]
        if name in ("token", "position"):
            scattered = Shard(0) if name == "position" and sequence else between
            found[path] = RowwiseParallel(input_layouts=Replicate(), output_layouts=scattered)
        elif name in COLUMNS:
            found[path] = ColwiseParallel()
        elif name in ROWS:
            found[path] = RowwiseParallel(output_layouts=between)
        elif hasattr(child, "router"):
            found[path] = Mixture(between)
        elif name in ("attention", "mlp"):
            others = (None, None) if name == "attention" and not hasattr(module, "dropout") else ()  # cosines, sines
            found[path] = PrepareModuleInput(
                input_layouts=(between, *others), desired_input_layouts=(Replicate(), *others)
            )
        elif name in ("q_norm", "k_norm"):
            if next(child.parameters(), None) is not None:
                found[path] = SequenceParallel(sequence_dim=2, use_local_output=True)
        elif name.startswith("norm"):
            found[path] = SequenceParallel() if sequence else Whole()
        elif name == "head":
            found[path] = ColwiseParallel(
                input_layouts=between, output_layouts=Shard(-1) if loss else Replicate(), use_local_output=not loss
            )
    return found


def split(module: nn.Module, mesh, ways: Mesh) -> nn.Module:
    """The module with its weights split over the GPUs of a one-dimensional device mesh; in place."""
    both, parts = hasattr(module, "token") and hasattr(module, "head"), mesh.size()  # a stage has one end at most
    tied = both and module.head.weight is module.token.weight
    for path, linear in module.named_modules():
        if path.endswith((".qkv", ".gate_up")):
            attention = module.get_submodule(path.rpartition(".")[0])
            for weight in linear.parameters():
                _regroup(weight, _widths(attention, linear), parts)
    parallelize_module(module, mesh, plan(module, ways))
    if tied:
        module.head.weight = module.token.weight  # both by the vocabulary: one part
    for block in module.blocks:
        attention = block.attention
        attention.heads //= parts
        if hasattr(attention, "kv_heads"):
            attention.kv_heads //= parts
            attention.widths = tuple(width // parts for width in attention.widths)
    return module


def _widths(owner, linear):
    """Rows of each of the matrices that a linear layer holds one after another."""
    if hasattr(owner, "widths"):
        return owner.widths
    matrices = 3 if hasattr(owner, "heads") else 2
    return (linear.out_features // matrices,) * matrices


@torch.no_grad()
def _regroup(weight, widths, parts, axis=0):
    """Rows in another order: first those of each matrix that the first GPU takes, then the second's."""
    cut = [matrix.chunk(parts, axis) for matrix in weight.split(list(widths), axis)]
    weight.copy_(torch.cat([matrix[part] for part in range(parts) for matrix in cut], axis))


def divided_loss(setup: Setup):
    """Within it, forward and backward of a loss of divided logits run."""
    return loss_parallel() if setup.mesh.tensor > 1 and setup.mesh.loss_parallel else nullcontext()
