"""Sizes that data decide: what masks find, and where a mixture's router sends tokens."""

import pytest

from everybyte.command import main
from everybyte.rehearsal import rehearse_script

#: Eight ways to give experts their tokens, as others write them: each finds the same counts.
WAYS = """
import sys
import torch
from torch.nn.functional import one_hot
T, K, E, D = 512, 2, 8, 16
x, gate, wanted = torch.ones(T, D, device="cuda"), torch.ones(T, E, device="cuda"), eval(sys.argv[1])
torch.set_default_device("cuda")
weights, idx = gate.softmax(-1).topk(K)
mask = one_hot(idx, E + 1).permute(2, 1, 0)  # as Hugging Face's, with one that nobody chooses
flat, hot = idx.view(-1), torch.zeros_like(gate).scatter_(1, idx, weights)
order, counts = flat.argsort(), flat.bincount(minlength=E).tolist()
hit = [int(e[0]) for e in (mask.sum((-1, -2)) > 0).nonzero()]
assert hit == [e for e in range(E) if wanted[e]] == idx.unique().tolist() and len(flat.bincount()) == len(hit)
assert [len(torch.where(mask[e])[1]) for e in range(E)] == wanted
assert [len(torch.where(idx == e)[0]) for e in range(E)] == wanted
assert [len(x[(idx == e).any(-1)]) for e in range(E)] == wanted
assert [len(p) for p in x[order // K].split(counts)] == wanted == torch.histc(flat.int(), E, 0, E - 1).int().tolist()
assert [len((hot[:, e] > 0).nonzero()) for e in range(E)] == wanted
assert (idx[..., None] == torch.arange(E, device="cuda")).sum((0, 1)).cpu().numpy().tolist() == wanted
assert len(flat.repeat_interleave(torch.bincount(flat, minlength=T * K))) == T * K
assert len(torch.where((idx == 0) & True)[0]) == wanted[0]
first = one_hot(gate.argmax(-1), E).bool()
assert sum(len(x[first[:, e]]) for e in range(E)) == T
import warnings
warnings.filterwarnings("error", message="Dynamo does not know")
def sizes(x, chosen):
    return [len(x[torch.where(chosen == e)[0] // K]) for e in range(E)], torch.bincount(chosen, minlength=E).tolist()
assert torch.compile(sizes, backend="eager")(x, flat) == (wanted, wanted)
idx.neg_()  # changed by what is not followed: unknown, and a mask of it finds all
assert len(torch.where(idx == 0)[0]) == T * K
"""

#: Two mixtures of Hugging Face's, expert after expert: how the bytes after forward grow with the experts' width.
MIXTURES = """
import sys
import torch
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
common = dict(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
x = torch.zeros(4, 64, dtype=torch.int64, device="cuda")

def after_forward(kind, config):
    config._experts_implementation = "eager"
    model = kind(config).cuda()
    assert model.config._experts_implementation == "eager"
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    kept = model(input_ids=x, labels=x).loss
    return torch.cuda.memory_stats()["requested_bytes.all.current"] - before

for kind, width, config in (
    (MixtralForCausalLM, 64, lambda width: MixtralConfig(**common, intermediate_size=width, num_local_experts=8, num_experts_per_tok=2)),
    (Qwen3MoeForCausalLM, 32, lambda width: Qwen3MoeConfig(**common, moe_intermediate_size=width, num_experts=16, num_experts_per_tok=4, head_dim=8)),
):
    after_forward(kind, config(width))  # the workspaces are there
    tokens = 4 * 64 * config(width).num_experts_per_tok
    grown = after_forward(kind, config(2 * width)) - after_forward(kind, config(width))
    assert grown == 2 * tokens * 4 * width * 4, (grown, tokens)  # layers, of each token gate and up, act(gate), and their product
"""

UNIQUE = """
import torch
values = torch.zeros(7, 3, device="cuda", dtype=torch.int8)
assert len(values.unique()) == 21 == len(values.unique_consecutive())
rows, inverse, counts = torch.unique(values, dim=0, return_inverse=True, return_counts=True)
assert rows.shape == (7, 3) and rows.dtype == torch.int8 and inverse.shape == counts.shape == (7,)
"""

SPARSE = """
import sys, torch
from torch import nn
table = nn.Embedding(1000, 64, sparse=True).cuda()
tokens = torch.arange(600) % 100
tokens = tokens.cuda() if sys.argv[1] == "known" else torch.randint(0, 1000, (600,), device="cuda")
table(tokens).sum().backward()
rows = table.weight.grad.coalesce()
assert rows.is_coalesced() and rows.shape == (1000, 64)
assert rows.indices().shape == (1, int(sys.argv[2])) and rows.values().shape == (int(sys.argv[2]), 64)
torch.optim.SparseAdam(table.parameters()).step()
"""

GUARDS = """
import math, torch
loss = torch.nn.Linear(8, 1).cuda()(torch.randn(4, 8, device="cuda")).square().mean()
assert torch.isfinite(loss) and bool(loss.isfinite()) and loss.detach().isfinite().item() and math.isfinite(loss.item())
assert torch.isfinite(loss.detach()[None]).all() and not torch.isnan(loss) and not torch.isinf(loss) and not ~torch.isfinite(loss)
best, norm = float("inf"), torch.linalg.vector_norm(torch.randn(9, device="cuda"))
assert loss < best and loss < 1e9 and loss == loss and loss >= 0 and not norm > 1 and not loss != loss and norm <= loss
step = torch.compile(lambda x: torch.where(torch.isfinite(x), x, 0.0).sum(), backend="aot_eager")
step(torch.randn(4, device="cuda", requires_grad=True)).backward()
"""

COUNTS = """
import torch
scores = torch.randn(1000, device="cuda").mul(9).long()
assert len(torch.zeros(1000, device="cuda").repeat_interleave(scores)) == 0
assert len(torch.ones(3, device="cuda").repeat_interleave(torch.tensor([1, 2, 3]).cuda())) == 6
print((torch.randn(8, 10, device="cuda").argmax(1) == 0).sum().item())
"""


@pytest.mark.parametrize(("routing", "wanted"), [("balanced", [128] * 8), ("worst", [512, 512, 0, 0, 0, 0, 0, 0])])
def test_experts_get_the_tokens_that_are_asked_for(here, script, routing, wanted):
    found = rehearse_script(["python", script(WAYS), str(wanted)], quiet=True, routing=routing)
    assert found.status == 0, str(found)
    (said,) = (text for text in found.unknown if text.startswith("routers sent"))
    most = f"{max(wanted):,} of 1,024"
    assert f"train.py:14 (8 times, {most})" in said and ("worst" in said) == (routing == "balanced")


def test_hugging_face_s_loops_over_experts(here, script):
    found = rehearse_script(["python", script(MIXTURES)], quiet=True)
    assert found.status == 0, str(found)
    assert "mixtral/modeling_mixtral.py:" in str(found.unknown)


def test_of_unknown_values_all_are_different(here, script):
    found = rehearse_script(["python", script(UNIQUE)], quiet=True)
    assert found.status == 0 and "masks found all rows where data decide, at " in str(found)


@pytest.mark.parametrize(("tokens", "rows"), [("known", 100), ("unknown", 600)])
def test_a_sparse_gradient_has_each_row_once(here, script, tokens, rows):
    found = rehearse_script(["python", script(SPARSE), tokens, str(rows)], quiet=True)
    assert found.status == 0, str(found)
    (device,) = found.processes[0]["devices"]
    assert device["peak"]["parts"]["gradients"] >= 600 * (64 * 4 + 8)
    (said,) = (text for text in found.unknown if f"{rows:,} of 600" in text)
    assert said.startswith("whole numbers" if tokens == "known" else "masks found all rows")


def test_counts_that_nobody_knows_and_choices_of_no_router_are_said(here, script):
    found = rehearse_script(["python", script(COUNTS)], quiet=True)
    (counts,) = (text for text in found.unknown if text.startswith("counts that only a kernel would know"))
    assert "train.py:4 (once, 0 of 1,000): a GPU makes larger ones" in counts and "train.py:5" not in counts
    (chosen,) = (text for text in found.unknown if text.startswith("routers sent"))
    assert "as a classifier's argmax, fell on each as often" in chosen and "train.py:6 (once)" in chosen


def test_a_loss_that_is_read_as_zero_is_finite(here, script):
    found = rehearse_script(["python", script(GUARDS)], quiet=True)
    assert found.status == 0, str(found)


def test_a_way_that_is_none(here, capsys):
    assert main(["rehearse", "--routing", "sideways", "--", "python", "x"]) == 2
    assert "rehearse.routing: 'sideways'" in capsys.readouterr().err
