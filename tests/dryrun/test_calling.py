"""What calls beside the step take: of clipping and of state dicts, what PyTorch's code allocates."""

import pytest
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict

import everybyte as eb
from everybyte.dryrun.calling import during

MODEL = eb.Model(name="small", layers=3, width=48, heads=4, vocabulary=257, positions=64)
ALONE = eb.Setup(batch=2, sequence=64)
SHARDED = ALONE.replace(gpus=8, sharding="zero3", precision="bf16-mixed")


def clip(module, optimizer):
    return torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)


def gathering(full, host=False, states=False):
    options = StateDictOptions(full_state_dict=full, cpu_offload=host)
    if states:
        return lambda module, optimizer: get_state_dict(module, optimizer, options=options)
    return lambda module, optimizer: get_model_state_dict(module, options=options)


def tensors():
    """(names in the state dict, distinct tensors), as the reference module has them: the head is the token table."""
    with torch.device("meta"):
        module = eb.reference.FAMILIES[MODEL.family](MODEL, ALONE)
    return dict(module.state_dict()), list(module.parameters())


def padded(tensor):
    return -(-tensor.shape[0] // 8) * 8 * tensor[0].numel() * 4


def test_clipping_makes_norms_and_no_copy_of_gradients():
    """A norm of 4 bytes a tensor, all of them stacked, the norm of these."""
    count = len(tensors()[1])
    for setup in (ALONE, ALONE.replace(gpus=8)):
        found = during(MODEL, setup, clip)
        assert (found.most, found.stays, found.host) == (4 * (2 * count + 1), 4, 0)
    assert 0 < during(MODEL, SHARDED, clip).most < 4 * (8 * count)


def test_a_full_state_dict_is_the_whole_model_and_a_sharded_one_is_nothing_new():
    named, distinct = tensors()
    assert len(named) == len(distinct) + 1
    whole = sum(map(padded, named.values()))  # a tied table stands under two names, and is gathered under each
    found = during(MODEL, SHARDED, gathering(True), "after_step")
    assert found.most == found.stays == whole
    assert during(MODEL, SHARDED, gathering(False), "after_step").most == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_with_cpu_offload_a_gpu_has_one_tensor_at_a_time_and_the_first_host_all(rank):
    named, distinct = tensors()
    found = during(MODEL, SHARDED, gathering(True, host=True), "after_step", rank)
    assert found.most == max(map(padded, named.values())) and found.stays == 0
    assert found.host == (sum(t.numel() * 4 for t in named.values()) if rank == 0 else 0)


def test_the_optimizers_states_are_gathered_too():
    weights, both = (during(MODEL, SHARDED, gathering(True, states=s), "after_step").most for s in (False, True))
    assert both - weights >= 2 * sum(map(padded, tensors()[1]))


def test_before_the_step_gradients_are_there_and_a_call_that_makes_nothing_takes_nothing():
    found = {moment: during(MODEL, ALONE, lambda *_: None, moment) for moment in ("after_backward", "after_step")}
    assert all((f.most, f.tensors) == (0, 0) for f in found.values())
    seen = []
    during(MODEL, ALONE, lambda m, o: seen.append([p.grad is not None for p in m.parameters()]))
    assert all(seen[-1]) and found["after_backward"].before == eb.dry_run(MODEL, ALONE).phases["after_backward"]


@pytest.mark.parametrize(
    "changes, named",
    [({"gpus": 8, "sharding": "zero1"}, "zero1"), ({"gpus": 8, "sharding": "zero3", "offload": "cpu"}, "cpu")],
)
def test_what_it_cannot_follow_is_refused(changes, named):
    with pytest.raises(ValueError, match=f"during.setup: .*{named}.*allowed"):
        during(MODEL, ALONE.replace(**changes), clip)
    with pytest.raises(ValueError, match="during.moment: .*noon"):
        during(MODEL, ALONE, clip, "noon")
