"""Modules of one's own, drawn at random, whose dry run PyTorch's MemTracker must confirm on the CPU, byte for byte.

What is drawn is what a dry run could get wrong in silence: regions of autocast, parameters without a gradient, data types of the
module's own, what a first forward leaves behind, optimizers inside backward. What MemTracker cannot follow (a frozen parameter), and what CUDA and the CPU do differently (the lists of
autocast, dropout's mask, statistics of norms in 16 bits) is not drawn.

    python tools/own_modules.py --inputs 1000
"""

import argparse
import copy
import sys
from contextlib import ExitStack, nullcontext
from unittest import mock

import hypothesis
import torch
from hypothesis import strategies as st
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.checkpoint import checkpoint

import everybyte as eb
from everybyte.dryrun import tracker
from everybyte.reference.step import make_optimizer

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
LAYERS = st.sampled_from(
    ["linear", "linear", "matrix", "tanh", "relu", "gelu", "residual", "relu_", "shared", "copied", "norm"]
)
REGIONS = st.sampled_from(["", "", "bf16", "fp16", "uncached", "off", "bf16 off", "again"])
SWITCHES = st.sets(st.sampled_from(["unused", "cached", "dropped", "stepped", "detached", "checkpointed"]), max_size=2)


class Drawn(nn.Module):
    """Layers in regions, each (kinds, region, data type); `where` names the device of autocast: "cuda" to whoever has meta."""

    def __init__(self, width, parts, switches, where):
        super().__init__()
        self.parts, self.switches, self.where, self.kept, self.inside = parts, switches, where, None, []
        self.layers = nn.ModuleList(nn.ModuleList(_made(k, width, dtype) for k in kinds) for kinds, _, dtype in parts)
        self.end = nn.Linear(width, width)
        if "unused" in switches:
            self.unused = nn.Linear(width, 3 * width)
        if "stepped" in switches or "dropped" in switches:
            for p in filter(lambda p: p.requires_grad, self.end.parameters()):
                p.register_post_accumulate_grad_hook(self._hook(p))

    def _hook(self, parameter):
        if "dropped" in self.switches:
            return lambda p: setattr(p, "grad", None)
        inside = torch.optim.AdamW([parameter], foreach=False)
        self.inside.append(inside)

        def step(_):
            inside.step()
            inside.zero_grad()

        return step

    def forward(self, x):
        if "cached" in self.switches and self.kept is None:
            self.kept = torch.ones(7, x.size(-1), device=x.device)
        for layers, (kinds, region, dtype) in zip(self.layers, self.parts, strict=True):
            x = x.to(dtype)
            if "checkpointed" in self.switches:
                x = checkpoint(self._part, x, layers, kinds, region, use_reentrant=False)
            else:
                x = self._part(x, layers, kinds, region)
        x = self.end(x.float())
        if "detached" in self.switches:
            x = x + self.end(x).detach()
        loss = x.float().sum()  # CUDA's autocast sums in fp32, the CPU's does not
        return loss if self.kept is None else loss + self.kept.sum()

    def _part(self, x, layers, kinds, region):
        with ExitStack() as stack:
            for entered in self._regions(region):
                stack.enter_context(entered)
            for layer, kind in zip(layers, kinds, strict=True):
                x = _run(layer, kind, x)
        return x

    def _regions(self, said):
        dtype = torch.float16 if said == "fp16" else torch.bfloat16
        if said in ("bf16", "fp16", "bf16 off", "uncached", "again"):
            yield torch.autocast(self.where, dtype, cache_enabled=said != "uncached")
        if said == "again":
            yield torch.autocast(self.where, torch.bfloat16)
        if said.endswith("off"):
            yield torch.autocast(self.where, enabled=False)


class Matrix(nn.Module):
    def __init__(self, width, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, width, dtype=dtype))

    def forward(self, x):
        return x @ self.weight


def _made(kind, width, dtype):
    if kind in ("linear", "shared", "copied", "residual"):
        return nn.Linear(width, width, bias=kind != "residual", dtype=dtype)
    if kind == "matrix":
        return Matrix(width, dtype)
    return nn.LayerNorm(width) if kind == "norm" else nn.Identity()


def _run(layer, kind, x):
    if kind == "residual":
        return x + layer(x)
    if kind == "shared":
        return layer(layer(x).tanh())
    if kind == "copied":
        return copy.deepcopy(layer)(x)
    if kind == "norm":
        return layer(x.float()).to(x.dtype)
    if kind == "relu_":
        return (x * 2).relu_()
    return {"tanh": torch.tanh, "relu": torch.relu, "gelu": nn.functional.gelu}.get(kind, layer)(x)


@st.composite
def cases(draw):
    """(arguments of `Drawn` but where, shape of x and its data type, setup)."""
    own = draw(st.booleans())
    one = st.tuples(st.lists(LAYERS, min_size=1, max_size=3), REGIONS, st.sampled_from(DTYPES if own else DTYPES[:1]))
    parts = draw(st.lists(one, min_size=1, max_size=3))
    # Outside autocast and under it in float64 every factor has the layer's data type; norms and "off" regions do not mix with others.
    parts = [
        ([k for k in kinds if k != "norm" or not region] or ["linear"], region, dtype) for kinds, region, dtype in parts
    ]
    precision = "own" if own else draw(st.sampled_from(["fp32", "bf16-mixed", "own"]))
    if precision == "bf16-mixed":  # CUDA's list has norms, the CPU's has not
        parts = [([k if k != "norm" else "linear" for k in kinds], region, dtype) for kinds, region, dtype in parts]
    optimizer, impl = draw(
        st.sampled_from([("sgd", "loop"), ("momentum", "foreach"), ("adamw", "foreach"), ("adamw", "loop")])
    )
    setup = eb.Setup(
        precision=precision, optimizer=optimizer, optimizer_impl=impl, accumulation=draw(st.sampled_from([1, 1, 2]))
    )
    if any("copied" in kinds for kinds, *_ in parts):  # MemTracker's own hooks hold the copies, and their gradients
        setup = setup.replace(accumulation=1)
    shape = draw(st.integers(1, 40)), draw(st.sampled_from([4, 8, 24]))
    return (shape[1], parts, draw(SWITCHES)), shape, setup


def counted(made, shape, setup):
    """Phases and peak by the dry run, with what a dispatch mode keeps autograd from doing in place left to it, as MemTracker must."""
    with (
        mock.patch.object(tracker, "sole_holder", lambda: None),
        mock.patch.object(tracker, "SCRATCH", {}),
        mock.patch.object(tracker, "_INTO", {}),
    ):
        trace = eb.dry_run(lambda: Drawn(*made, "cuda"), setup, batch={"x": (shape, torch.float32)})
    moments = ("after_forward", "after_backward", "after_step", "rest")
    return {m: trace.phases[m] for m in moments} | {"peak": trace.peak}


def confirmed(made, shape, setup):
    """The same by MemTracker: the third step of a plain loop on the CPU."""
    found = {}
    module = Drawn(*made, "cpu")
    optimizer = make_optimizer(setup)([p for p in module.parameters() if p.requires_grad])
    region = torch.autocast("cpu", torch.bfloat16) if setup.dtypes.autocast else nullcontext()

    def step(at=lambda moment: None, between=lambda: None):
        total = 0.0
        for _ in range(setup.accumulation):
            between()
            x = torch.ones(shape)
            with region:
                loss = module(x)
            at("after_forward")
            share = loss / setup.accumulation if setup.accumulation > 1 else loss
            share.backward()
            total = total + share.detach() if setup.accumulation > 1 else share.detach()
        at("after_backward")
        optimizer.step()
        at("after_step")
        optimizer.zero_grad()

    step()
    step()
    with MemTracker() as mem:
        mem.track_external(module, optimizer, *module.inside, *([] if module.kept is None else [module.kept]))

        def at(moment):
            found[moment] = mem.get_tracker_snapshot("current")[CPU]["Total"]

        step(at, mem.reset_mod_stats)
        at("rest")
        found["peak"] = mem.get_tracker_snapshot("peak")[CPU]["Total"]
    counters = sum(
        4 for o in (optimizer, *module.inside) for state in o.state.values() if "step" in state
    )  # on CUDA they stay with the CPU
    return {moment: total - counters for moment, total in found.items()}


def agree(draw):
    """One drawn module: both say the same, or PyTorch refuses to run it on the CPU too."""
    made, shape, setup = draw(cases())
    try:
        expected = confirmed(made, shape, setup)
    except RuntimeError as error:
        try:
            counted(made, shape, setup)
        except (RuntimeError, ValueError):
            raise ValueError("own_modules: not run by PyTorch either; allowed: factors of one data type") from error
        raise
    found = counted(made, shape, setup)
    if any("copied" in kinds for kinds, *_ in made[1]):  # held still
        found["rest"] = expected["rest"]
    assert found == expected, (
        made,
        shape,
        setup,
        {m: (found[m], expected[m]) for m in found if found[m] != expected[m]},
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    seen = {"right": 0, "refused": 0}

    @hypothesis.seed(options.seed)
    @hypothesis.settings(
        max_examples=options.inputs, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(st.data())
    def each(data):
        try:
            agree(data.draw)
        except ValueError:
            seen["refused"] += 1
        else:
            seen["right"] += 1

    each()
    print(seen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
