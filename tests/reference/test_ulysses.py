"""DeepSpeed's own exchange of heads for tokens takes what the reference's takes, operation by operation."""

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore

import everybyte as eb
from everybyte.dryrun.mesh import in_a_ring
from everybyte.reference.mesh.ulysses import exchanged

WIDE, TOKENS = 16, 512


class Block(nn.Module):
    """Attention of projected tokens, DeepSpeed's or the reference's."""

    def __init__(self, theirs, parts, heads, kv_heads, batch):
        super().__init__()
        self.q, self.out = (nn.Linear(heads * WIDE, heads * WIDE, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(heads * WIDE, kv_heads * WIDE, bias=False) for _ in range(2))
        self.parts, self.num_key_value_groups, self.is_causal, self.sharing = parts, heads // kv_heads, True, None
        if theirs:
            from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
            from transformers.integrations.sdpa_attention import sdpa_attention_forward as attend

            given = batch, heads, WIDE, kv_heads, 1, dist.group.WORLD
            local = {"local_seq_length": TOKENS // parts, "global_seq_length": TOKENS}
            self.sharing = UlyssesSPAttentionHF(attend, *given, **local)

    def forward(self, x):
        q, k, v = (f(x).unflatten(2, (-1, WIDE)).transpose(1, 2) for f in (self.q, self.k, self.v))
        places = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        if self.sharing:
            y, _ = self.sharing(self, q, k, v, None, position_ids=places)
        else:
            whole = F.scaled_dot_product_attention
            y = exchanged(whole, q, k, v, self.parts, dist.group.WORLD, is_causal=True, enable_gqa=True)
            y = y.transpose(1, 2).flatten(2)
        return self.out(y).float().sum()


def _live(theirs, parts, heads, kv_heads, batch):
    """Live bytes at each operation, but for whole rows of 8-byte positions and those of one GPU's tokens."""
    setup = eb.Setup(batch=batch, sequence=TOKENS // parts, precision="bf16", optimizer="sgd")
    x = torch.empty(batch, TOKENS // parts, heads * WIDE, device="meta", dtype=torch.bfloat16)
    with in_a_ring():
        found = eb.dry_run(lambda: Block(theirs, parts, heads, kv_heads, batch), setup, batch=(x,))
    places = {8 * batch * TOKENS, 8 * batch * TOKENS // parts}
    others = [a for a in found.allocations if a.bytes not in places]
    live = [
        sum(a.bytes for a in others if a.birth <= i and (a.death is None or a.death > i))
        for i in range(len(found.live))
    ]
    return [size for size, before in zip(live, [None, *live], strict=False) if size != before]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("parts", "kv_heads"), [(2, 8), (4, 2), (8, 1)])
def test_deepspeeds_own_takes_as_much_at_every_operation(parts, kv_heads, batch, monkeypatch):
    layer = pytest.importorskip(
        "deepspeed.sequence.layer", reason="needs deepspeed, which is in no environment of ours"
    )
    from deepspeed.runtime.sequence_parallel import ulysses_sp

    for module in (layer, ulysses_sp):
        monkeypatch.setattr(module, "dist", dist)
    dist.init_process_group("fake", rank=0, world_size=parts, store=FakeStore())
    try:
        layer.register_all_to_all_group(dist.group.WORLD)
        theirs, ours = (_live(their, parts, 8, kv_heads, batch) for their in (True, False))
    finally:
        dist.destroy_process_group()
    assert theirs == ours
