"""Values that a batch is given with: a dry run follows them to where they decide a size, and no further."""

from random import Random

import pytest
import ran
import torch
from torch import nn
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

import everybyte as eb

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
    seen = ran.scripts()[f"pictures {words}"]["printed"]["FOUND"][-1][0]
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


def frozen_qwen(kind):
    """A function that makes a small Qwen whose tower is frozen and whose input embeddings are asked for gradients; its batch."""
    import transformers

    text = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    text |= {"head_dim": 32, "vocab_size": 1000, "use_cache": False, "bos_token_id": None, "eos_token_id": None}
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]}
    vision = {"depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "out_hidden_size": 64}
    vision |= (
        {"fullatt_block_indexes": [1]}
        if kind == "Qwen2_5_VL"
        else {"deepstack_visual_indexes": [0], "num_position_embeddings": 64}
    )
    marks = {"image_token_id": 999, "video_token_id": 998, "vision_start_token_id": 997, "vision_end_token_id": 996}
    config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=vision, **marks)
    ids = torch.zeros(1, 40, dtype=torch.int64)
    ids[:, :16] = 999
    a_patch = 3 * 2 * (14 if kind == "Qwen2_5_VL" else 16) ** 2
    given = {
        "input_ids": ids,
        "labels": ids,
        "image_grid_thw": torch.tensor([[1, 8, 8]]),
        "mm_token_type_ids": (ids == 999).int(),
    }
    return _frozen(f"{kind}ForConditionalGeneration", config, "visual"), given | {
        "pixel_values": ((64, a_patch), torch.float32)
    }


def frozen_llava(kind):
    """The same of a LLaVA with that tower."""
    import transformers

    text = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2, vocab_size=1000
    )
    text.use_cache = False
    tower_ = getattr(transformers, f"{kind}VisionConfig")(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=56, patch_size=14
    )
    how = "full" if kind == "Siglip" else "default"
    config = transformers.LlavaConfig(
        vision_config=tower_, text_config=text, image_token_id=999, vision_feature_select_strategy=how
    )
    ids = torch.zeros(1, 40, dtype=torch.int64)
    ids[:, :16] = 999
    batch = {"input_ids": ids, "labels": ids, "pixel_values": ((1, 3, 56, 56), torch.float32)}
    return _frozen("LlavaForConditionalGeneration", config, "vision_tower"), batch


def _frozen(name, config, place):
    import transformers

    def make(asked):
        model = getattr(transformers, name)._from_config(config, dtype=torch.bfloat16).train()
        getattr(model.model, place).requires_grad_(False)
        if asked:
            model.enable_input_require_grads()
        return model

    return make


@pytest.mark.parametrize(
    ("made", "kind", "saves"),
    [
        (frozen_qwen, "Qwen2_5_VL", True),
        (frozen_qwen, "Qwen3VL", False),
        (frozen_llava, "Siglip", True),
        (frozen_llava, "CLIP", True),
    ],
)
def test_a_frozen_tower_saves_where_its_input_is_asked_for_gradients(made, kind, saves):
    make, batch = made(kind)

    def of_the_tower(asked):
        trace = eb.dry_run(lambda: make(asked), OWN, batch=batch)
        alive = trace.owners(trace.marks["after_forward"])
        return sum(a.bytes for a in alive if a.owner.startswith(("model.vis",)) and a.part == "activations")

    least = of_the_tower(False)
    assert least <= (17 * 64 * 2 if made is frozen_llava else 0)  # what the projector reads: a token more of CLIP
    assert (of_the_tower(True) > 4 * least) is saves


class Merging(nn.Module):
    """Rows that take the places of others, as pictures' tokens those of placeholders."""

    def __init__(self):
        super().__init__()
        self.rows, self.text = nn.Parameter(torch.empty(3, 32)), nn.Parameter(torch.empty(2, 5, 32))

    def forward(self, places):
        return self.text.masked_scatter(places.unsqueeze(-1), self.rows).sum()


def test_merging_takes_what_a_rehearsal_says():
    """Forward: a number of 8 bytes and the mask for each number written into. Backward: three of 8 bytes for each one selected.

    A rehearsal of PyTorch's CUDA code asks for the same, and for cub's workspace, which is in no dry run.
    """
    places = torch.zeros(2, 5, dtype=torch.bool)
    places[0, 1:4] = True
    trace = eb.dry_run(Merging, eb.Setup(), batch=(places,))
    brief = [(a.operation, a.bytes) for a in trace.allocations if a.death == a.birth]
    assert ("masked_scatter", 8 * 2 * 5 * 32) in brief and ("masked_scatter", 2 * 5 * 32) in brief
    assert [a.bytes for a in trace.allocations if a.operation == "nonzero"] == [3 * 32 * 3 * 8]
