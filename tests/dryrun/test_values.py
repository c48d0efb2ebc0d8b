"""Values that a batch is given with: a dry run follows them to where they decide a size, and no further."""

import json
from pathlib import Path
from random import Random

import pytest
import torch
from torch import nn
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

import everybyte as eb

RECORD = Path(__file__).parents[2] / "labs" / "records" / "scripts" / "h200.jsonl"
OWN = eb.Setup(precision="own")


class Tower(nn.Module):
    """Qwen3-VL's tower, and a number that depends on all that it gives."""

    def __init__(self, config, checkpointed):
        super().__init__()
        self.visual = Qwen3VLVisionModel._from_config(config, dtype=torch.bfloat16).train()
        if checkpointed:
            self.visual.gradient_checkpointing_enable({"use_reentrant": False})

    def forward(self, pixels, grid):
        found = self.visual(pixels, grid)
        return sum((tap.sum() for tap in found.deepstack_features), found.pooler_output.sum())


def tower(seed):
    """(a small random tower's configuration, the grids of its pictures, its symbols)."""
    draw = Random(seed)
    heads, wide = draw.choice([2, 4]), draw.choice([16, 32, 64])
    width, layers = heads * wide, draw.randint(2, 3)
    taps = sorted(draw.sample(range(layers), draw.randint(0, 2)))
    ffn, count = draw.choice([2, 3]) * width + 8, draw.randint(1, 3)
    config = Qwen3VLVisionConfig(
        hidden_size=width, intermediate_size=ffn, depth=layers, num_heads=heads, out_hidden_size=64,
        deepstack_visual_indexes=taps, num_position_embeddings=256,
    )  # fmt: skip
    grids = [[1, 2 * draw.randint(1, 6), 2 * draw.randint(1, 6)] for _ in range(count)]
    patches = sum(rows * columns for _, rows, columns in grids)
    said = {
        "patches": patches, "pictures": count, "tower_layers": layers, "tower_width": width, "tower_heads": heads,
        "tower_ffn_width": ffn, "tower_taps": len(taps), "patch_side": 16, "patch_frames": 2,
    }  # fmt: skip
    return config, grids, said


def saved(trace):
    """Bytes of activations between forward and backward."""
    return trace.parts_at("after_forward")["activations"]


@pytest.mark.parametrize("seed", range(6))
def test_the_tower_saves_what_its_formula_says(seed):
    config, grids, said = tower(seed)
    batch = {"pixels": ((said["patches"], 1536), torch.float32), "grid": torch.tensor(grids)}
    whole, kept = (eb.dry_run(lambda full=full: Tower(config, full), OWN, batch=batch) for full in (False, True))
    names = ("picture.pixels", "tower.saved", "tower.block", "tower.checkpointed")
    pixels, tower_, block, least = (eb.formula(name)(**said) for name in names)
    grid, loss, ends = (
        24 * len(grids),
        2,
        4 * (len(grids) + 1),
    )  # three whole numbers a picture; where each begins, for who recomputes
    assert saved(whole) == tower_ + pixels + grid + loss
    assert saved(kept) == saved(whole) - said["tower_layers"] * (block - least) + ends


class Labelled(Qwen3VLForConditionalGeneration):
    """Makes its labels from the tokens, as the script of the record does."""

    def forward(self, input_ids, **others):
        return super().forward(input_ids=input_ids, labels=input_ids.clone(), **others)


def small(words):
    """A function that makes the record's model."""
    text = {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 4, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 32003, "use_cache": False,
        "rope_scaling": {"rope_type": "default", "mrope_section": [12, 10, 10], "mrope_interleaved": True},
    }  # fmt: skip
    vision = {
        "hidden_size": 512, "intermediate_size": 2048, "depth": 6, "num_heads": 8, "out_hidden_size": 1024,
        "deepstack_visual_indexes": [1, 3], "num_position_embeddings": 2304,
    }  # fmt: skip
    tokens = {
        "image_token_id": 32000,
        "video_token_id": 32001,
        "vision_start_token_id": 32002,
        "vision_end_token_id": 31999,
    }

    def make():
        config = Qwen3VLConfig(text_config=text, vision_config=vision, **tokens)
        model = Labelled._from_config(config, dtype=torch.bfloat16).train()
        if "full" in words:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        if "frozen" in words:
            model.model.visual.requires_grad_(False)
        return model

    return make


def pictures(batch, text, tokens):
    """The arguments of a forward: a picture of so many tokens in each sequence."""
    ids = torch.zeros(batch, text + tokens, dtype=torch.int64)
    ids[:, 0], ids[:, 1 : 1 + tokens] = 32002, 32000
    return {
        "input_ids": ids, "pixel_values": ((batch * 4 * tokens, 1536), torch.float32),
        "image_grid_thw": torch.tensor([[1, 2, 2 * tokens]] * batch), "mm_token_type_ids": (ids == 32000).int(),
    }  # fmt: skip


#: cuBLAS's workspaces of the record: 64 MiB, and 1 MiB for each thread that multiplies; and the calls of flash attention that are saved,
#: each of which has 8 bytes less under its PyTorch 2.11: four of the text, of the tower six for each of two pictures.
@pytest.mark.parametrize(("words", "threads", "calls"), [("", 1, 4 + 6 * 2), (",full", 2, 0), (",frozen", 1, 4)])
def test_a_model_of_pictures_and_text_takes_what_an_h200_did(words, threads, calls):
    lines = map(json.loads, RECORD.read_text(encoding="utf-8").splitlines())
    seen = next(line for line in lines if line["name"] == f"pictures {words}")["printed"]["FOUND"][-1][0]
    trace = eb.dry_run(small(words), OWN, batch=pictures(2, 512 - 196, 196))
    assert seen == trace.peak + 2**26 + threads * 2**20 - 8 * calls


class Reading(nn.Module):
    """Its sizes depend on values."""

    def __init__(self, how):
        super().__init__()
        self.weight, self.how = nn.Parameter(torch.empty(8, 4)), how

    def forward(self, which):
        return (self.how(self.weight, which) * 2).sum()


def masked(weight, which):
    return weight[which > 3]


def summed(weight, which):
    return weight[: int(which[which > 4].sum())]


def changed(weight, which):
    which = which.clone()
    which[1:] = 0
    return weight[: which.sum().item()]


def listed(weight, which):
    return weight.split(which.tolist())[torch.tensor(which.tolist(), device=which.device).argmax().item()]


def lost(weight, which):
    return weight[: int((which * weight[:, 0].sum()).sum())]


@pytest.mark.parametrize(("how", "rows"), [(masked, 2), (summed, 5), (changed, 1), (listed, 4)])
def test_sizes_follow_the_values(how, rows):
    which = torch.tensor([1, 3, 4, 0]) if how is listed else torch.tensor([1, 3, 4, 0, 0, 0, 0, 5])
    trace = eb.dry_run(lambda: Reading(how), eb.Setup(), batch=(which,))
    assert [a.bytes for a in trace.allocations if a.operation == "mul"][0] == rows * 4 * 4


def test_values_that_depend_on_weights_are_not_known():
    with pytest.raises(ValueError, match="needs the values in a tensor"):
        eb.dry_run(lambda: Reading(lost), eb.Setup(), batch=(torch.tensor([1, 3, 4, 0, 0, 0, 0, 5]),))


def test_the_most_tokens_of_a_picture_that_fit():
    """The step at what is found fits, by its peak and by the allocator; the next does not."""
    config, *_ = tower(0)

    def make():
        return Tower(config, False)

    def batch(M):
        return {"pixels": ((4 * M, 1536), torch.float32), "grid": torch.tensor([[1, 2, 2 * M]])}

    found = eb.fit(make, OWN, "2 GiB", "M", batch=batch, configuration="expandable_segments:True")
    at, after = (eb.dry_run(make, OWN, 512, batch(found.value + more)) for more in (0, 1))
    assert at.peak == found.peak <= found.usable and found.next.sizes == {"M": found.value + 1}
    assert found.reserved.failed is None and (after.peak > found.usable or found.failed.failed)
    with pytest.raises(ValueError, match="letter 'N'"):
        eb.fit(make, OWN, "4 GiB", "M", batch=lambda M, N: batch(M * N))
