"""The losses that the dry run has, beside trl's own code: `DPOTrainer._compute_loss`, `GRPOTrainer._compute_loss` and what they call.

They run here on numbers, a few tokens: on tensors without data they end at their own metrics, which ask for values
(trl 1.16, trainer/dpo_trainer.py, "if total_tokens > 0"; grpo_trainer.py, `global_masked_mean`, "item()").

PPO has no trainer of its own in trl 1: its surrogate is GRPO's without a divergence, and its value loss has no witness there. trl is no
part of the extra `adapters`: it brings `datasets`, and with it pyarrow and pandas, 270 MB for what is tested here.
"""

import inspect
from collections import defaultdict
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from everybyte.reference.objectives import losses

pytest.importorskip("transformers")
trl = pytest.importorskip("trl")
pytest.importorskip("datasets", reason="trl's trainers import it")

BATCH, PROMPT = 4, 2


class Accelerator:
    """One process."""

    device, num_processes, sync_gradients = "cpu", 1, True
    gather = gather_for_metrics = unwrap_model = staticmethod(lambda x: x)
    reduce = staticmethod(lambda x, reduction: x)
    autocast = staticmethod(nullcontext)


class Known(nn.Module):
    """A model whose log-probabilities are known."""

    is_gradient_checkpointing = False

    def __init__(self, log_p):
        super().__init__()
        self.known = [log_p]

    def forward(self, labels, **_):
        zeros = torch.zeros(self.known[0].shape)
        return SimpleNamespace(
            log_probs=self.known[0] * (labels[:, 1:] != -100), entropy=zeros, mean_logits=zeros, is_top1=zeros.bool()
        )


@pytest.fixture(params=[6, 12], ids="sequence {}".format)
def given(request):
    generator, shape = torch.Generator().manual_seed(0), (BATCH, request.param)
    normal = lambda *sizes: torch.randn(*sizes, generator=generator)  # noqa: E731
    mask = torch.ones(shape, dtype=torch.int64)
    mask[1, -1] = mask[2, -2:] = 0
    log_p, reference, old = (normal(*shape) / 2 - 3 for _ in range(3))
    return SimpleNamespace(
        log_p=log_p.requires_grad_(), reference=reference, old=old, advantages=normal(BATCH), mask=mask
    )


def looked_at(loss, log_p):
    """A loss, its gradient, and the bytes that it keeps for backward."""
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes() * (tensor.numel() > 1)  # not the counts and factors
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        value = loss()
    return value.detach(), torch.autograd.grad(value, log_p)[0], sum(kept.values())


def same(trls, ours, log_p):
    theirs, here = looked_at(trls, log_p), looked_at(ours, log_p)
    assert theirs[0] == here[0] and torch.equal(theirs[1], here[1]) and theirs[1].abs().sum() > 0
    assert theirs[2] == here[2] > 0


def test_dpos(given):
    tokens = given.mask.shape[1] + 1
    mask = torch.cat([torch.zeros(BATCH, 1, dtype=torch.int64), given.mask], 1)
    policy = Known(given.log_p)
    trainer = SimpleNamespace(
        model=policy, ref_model=Known(given.reference), accelerator=Accelerator(), beta=losses.BETA, loss_types=["sigmoid"],
        loss_weights=[1.0], f_divergence_type="reverse_kl", ld_alpha=None, precompute_ref_logps=False, aux_loss_enabled=False,
        use_weighting=False, args=SimpleNamespace(gradient_checkpointing_kwargs=None), _metrics=defaultdict(lambda: defaultdict(list)),
        _total_train_tokens=0, _tp_size=1,
    )  # fmt: skip
    inputs = {"input_ids": torch.zeros(BATCH, tokens, dtype=torch.int64), "completion_mask": mask}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    answers = given.mask != 0
    same(
        lambda: trl.DPOTrainer._compute_loss(trainer, policy, dict(inputs), False),
        lambda: losses.preference(
            losses.of_sequences(given.log_p, answers), losses.of_sequences(given.reference, answers)
        ),
        given.log_p,
    )


@pytest.mark.parametrize("beta", [losses.BETA, 0.0], ids=["grpo", "ppo: no divergence"])
def test_grpos_and_ppos(given, beta):
    policy = Known(given.log_p)
    trainer = SimpleNamespace(
        model=policy, accelerator=Accelerator(), beta=beta, loss_type="bnpo", epsilon_low=losses.CLIP, epsilon_high=losses.CLIP,
        importance_sampling_level="token", top_entropy_quantile=1.0, off_policy_mask_threshold=None, aux_loss_enabled=False,
        use_vllm=False, current_gradient_accumulation_steps=1, _entropy_bonus_enabled=False,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None), _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *_, **__: (given.log_p, torch.zeros(given.mask.shape), None),
    )  # fmt: skip
    prompt = torch.zeros(BATCH, PROMPT, dtype=torch.int64)
    inputs = {
        "prompt_ids": prompt, "prompt_mask": prompt + 1, "completion_ids": torch.zeros_like(given.mask), "completion_mask": given.mask,
        "advantages": given.advantages, "old_per_token_logps": given.old, "ref_per_token_logps": given.reference,
    }  # fmt: skip
    same(
        lambda: trl.GRPOTrainer._compute_loss(trainer, policy, inputs),
        lambda: losses.surrogate(
            given.log_p, given.mask, given.old, given.advantages[:, None], given.reference if beta else None
        ),
        given.log_p,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_log_probabilities(dtype):
    from trl.trainer.utils import selective_log_softmax

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 17, generator=generator).to(dtype)
    targets = torch.randint(17, (3, 5), generator=generator)
    theirs, here = selective_log_softmax(logits, targets), losses.log_probabilities(logits, targets)
    # In fp32 trl takes logit - logsumexp: the same number, rounded once more.
    torch.testing.assert_close(theirs, here, rtol=0, atol=0 if dtype == torch.bfloat16 else 1e-6)


def test_its_trainers_no_longer_make_all_logits():
    """Which is why their whole step is another than the one derived: they score tokens and vocabulary in tiles."""
    for trainer in (trl.DPOTrainer._compute_loss, trl.GRPOTrainer._get_per_token_logps_and_entropies):
        assert "fused_lm_head=True" in inspect.getsource(trainer)
