"""Linear attention by FLA's kernels, on tensors without data, against rehearsals of FLA's own code."""

import json
import sys
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
import ran
import torch
from torch import nn
from transformers import AutoConfig, GPT2Config, Qwen3NextConfig
from transformers.integrations.hub_kernels import use_kernel_func_from_hub_with_fallback
from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention
from transformers.models.qwen3_next import modeling_qwen3_next
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

import everybyte as eb
from everybyte.dryrun.delta_rules import delta_rules
from everybyte.dryrun.tracker import Tracker

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "beside"))
import cases  # noqa: E402

FLA = eb.Setup(linear_attention="fla")
#: cuBLAS's, of the two threads that multiply.
WORKSPACES = 2 * 2**25
REHEARSED = ran.scripts("rehearsals/linear_attention")
SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 101,
    "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "moe_intermediate_size": 32, "num_experts_per_tok": 2,
    "num_experts": 4, "shared_expert_intermediate_size": 32, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 16, "linear_value_head_dim": 24, "use_cache": False,
}  # fmt: skip


class Gdn(nn.Module):
    def forward(self, *given, g, beta):
        return torch_chunk_gated_delta_rule(*given, g=g, beta=beta, use_qk_l2norm_in_kernel=True)[0]


class Kda(nn.Module):
    def forward(self, *given, g, beta):
        return chunk_kimi_delta_attention(*given, g=g, beta=beta, use_qk_l2norm_in_kernel=True)[0]


def inputs(kind, batch, tokens, keys, heads, width, columns, dtype=torch.bfloat16):
    """Those of a rule, as weights without data."""
    of_values = batch, tokens, heads
    shapes = {
        "query": (batch, tokens, keys, width),
        "key": (batch, tokens, keys, width),
        "value": (*of_values, columns),
        "beta": of_values,
    }
    made = {name: torch.empty(shape, dtype=dtype, device="meta") for name, shape in shapes.items()}
    made["g"] = torch.empty(*of_values, *[width] * (kind is Kda), dtype=torch.float32, device="meta")
    return {name: one.requires_grad_() for name, one in made.items()}


def measured(kind, given):
    """[bytes saved beside the result, the most in forward, the most in forward and backward], and FLOPs, of one call."""
    tracker, module = Tracker(), kind()
    names = [name for name in given if name not in ("g", "beta")]
    with delta_rules(module, FLA, tracker), tracker:
        out = module(*(given[name] for name in names), g=given["g"], beta=given["beta"])
        live = list(accumulate(_sizes(tracker)))
        tracker.phase = "backward"
        torch.autograd.backward(out, torch.zeros_like(out))
        return [live[-1] - out.nbytes, max(live), max(accumulate(_sizes(tracker)))], tracker.flops


def _sizes(tracker):
    return [c.allocation.bytes * (1 if c.what == "birth" else -1) for c in tracker.changes if c.allocation]


@pytest.mark.parametrize(("name", "kind", "keys"), [("gdn fla", Gdn, 16), ("kda fla", Kda, 32)])
def test_a_rule_takes_what_fla_s_was_rehearsed_to_take(name, kind, keys):
    found = REHEARSED[name]["printed"]["FOUND"]
    for tokens, *rehearsed in (row[1:] for row in found if row[0] == "rule"):
        assert measured(kind, inputs(kind, 1, tokens, keys, 32, 128, 128))[0] == rehearsed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("kind", "formula", "keys"), [(Gdn, "delta.kernel", 2), (Kda, "kimi.kernel", 6)])
def test_a_rule_saves_what_the_formula_says(kind, formula, keys, dtype):
    for batch, tokens, width in ((1, 1, 8), (3, 64, 40), (2, 130, 256)):
        (saved, *_), _ = measured(kind, inputs(kind, batch, tokens, keys, 6, width, 24, dtype))
        at = {
            "state_key_heads": keys,
            "state_heads": 6,
            "state_rows": width,
            "chunk": 64,
            "compute_bytes": dtype.itemsize,
        }
        assert saved == eb.formula(formula)(batch=batch, sequence=tokens, **at)


@pytest.mark.parametrize("name", cases.HYBRIDS)
def test_a_step_asks_for_what_was_rehearsed(name):
    """To the byte: in autocast or not, recomputed or not, with sequences that are no whole number of chunks, and grouped heads."""
    told = REHEARSED[name]["told"]
    assert {"fla-core": "0.6.0", "transformers": "5.23.0", "torch": "2.13.0"}.items() <= told["versions"].items()
    kind, batch, sequence, words, *fields = cases.HYBRIDS[name].split()
    words, values = words.split(","), (field.split("=", 1) for field in fields)
    config = AutoConfig.for_model(kind, use_cache=False, **{name: json.loads(value) for name, value in values})
    precision = "bf16-mixed" if "mixed" in words else words[0]
    config.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    setup = FLA.replace(
        batch=int(batch),
        sequence=int(sequence),
        precision=precision,
        checkpointing="full" if "full" in words else "none",
    )
    trace = eb.dry_run(config, setup)
    assert trace.operations[trace.peak_operation][2].endswith(("linear_attn", "self_attn", "experts"))
    # On an H200 PyTorch takes cuDNN's attention in 16 bits, which keeps 16 bytes of random state in place of flash attention's 24.
    states = [a for a in trace.owners() if "flash" in a.operation and a.bytes == 16]
    assert told["end"]["requested_bytes"][1] == trace.peak + WORKSPACES - 8 * len(states)


def test_torch_is_transformers_own_code_even_where_fla_is_installed():
    packages = {name: ModuleType(name) for name in ("fla", "fla.ops", "fla.ops.gated_delta_rule")}
    packages["fla.ops.gated_delta_rule"].chunk_gated_delta_rule = lambda *_, **__: 1 / 0
    with mock.patch.dict(sys.modules, packages):
        installed = use_kernel_func_from_hub_with_fallback("chunk_gated_delta_rule", "fla")(
            torch_chunk_gated_delta_rule
        )
    with pytest.raises(ZeroDivisionError):
        installed()
    config, setup = Qwen3NextConfig(**SMALL), eb.Setup(batch=2, sequence=70, precision="bf16-mixed")
    peaks = {how: eb.dry_run(config, setup.replace(linear_attention=how)).peak for how in ("torch", "fla")}
    assert peaks["fla"] < peaks["torch"]
    with mock.patch.object(modeling_qwen3_next, "torch_chunk_gated_delta_rule", installed):
        for how, peak in peaks.items():
            assert eb.dry_run(config, setup.replace(linear_attention=how)).peak == peak


@pytest.mark.parametrize(("kind", "products"), [(Gdn, 8 + 24), (Kda, 8 + 22)])
def test_flops_are_of_whole_chunks(kind, products):
    """Products of 64 rows with 64, in forward and backward."""
    counts = [measured(kind, inputs(kind, 3, tokens, 1, 2, 64, 64))[1] for tokens in (1, 64, 65, 128)]
    assert counts == [3 * 2 * chunks * products * 2 * 64**3 for chunks in (1, 1, 2, 2)]


def test_a_cache_is_given_the_last_state():
    """In fp32; and backward is given zeros in place of its gradient, which nothing has."""
    setup = FLA.replace(batch=3, sequence=70, precision="bf16-mixed")
    trace = eb.dry_run(Qwen3NextConfig(**SMALL | {"use_cache": True}), setup)
    made = [(a.operation, trace.operations[a.birth][1]) for a in trace.allocations if a.bytes == 3 * 4 * 16 * 24 * 4]
    assert ("new_zeros", "forward") in made and ("zeros", "backward") in made


@pytest.mark.parametrize(
    "shared",
    [
        {},
        pytest.param(
            {"gpus": 64, "sharding": "zero3"}, marks=pytest.mark.thorough("the same of another step, twenty seconds")
        ),
    ],
)
def test_a_step_is_derived(shared):
    """Where torch code has more operations the longer the sequence, a formula in batch and sequence, and what fits by it."""
    config, setup = Qwen3NextConfig(**SMALL), FLA.replace(precision="bf16-mixed", **shared)
    formula = eb.derive(config, setup)
    for batch, sequence in ((3, 200), (5, 64), (1, 1000)):
        ran = eb.dry_run(config, formula.setup.replace(batch=batch, sequence=sequence))
        assert formula.at(batch=batch, sequence=sequence).peak == ran.peak
    assert eb.fit(formula, formula.setup.replace(sequence=4096), "h200").value > 8


@pytest.mark.parametrize(
    ("config", "setup", "said"),
    [
        (GPT2Config(n_layer=1, n_embd=8, n_head=1, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0), {}, "'fla' with GPT2LMHeadModel, no layer"),
        (Qwen3NextConfig(**SMALL | {"layer_types": ["full_attention"] * 2}), {}, "'fla' with Qwen3NextForCausalLM, no layer"),
        (Qwen3NextConfig(**SMALL | {"linear_key_head_dim": 264}), {}, "2 key heads of width 264 .*allowed: widths to 256"),
        (eb.model("gpt2"), {}, "'fla' with gpt2, a Model.*allowed: 'torch'"),
        (Qwen3NextConfig(**SMALL), {"gpus": 2, "mesh": eb.Mesh(tensor=2)}, "'fla' with mesh tensor=2"),
    ],
)  # fmt: skip
def test_what_has_no_such_kernel_refuses_it(config, setup, said):
    with pytest.raises(ValueError, match=rf"^Setup\.linear_attention: .*{said}"):
        eb.dry_run(config, eb.Setup(linear_attention="fla", batch=1, sequence=16, **setup))
