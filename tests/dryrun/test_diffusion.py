"""diffusers' own Flux, with adapters: what its blocks save is what their formula says."""

from random import Random

import pytest
import torch
from diffusers import FluxTransformer2DModel
from peft import LoraConfig
from torch import nn

import everybyte as eb

#: What diffusers' train_dreambooth_lora_flux.py adapts.
ADAPTED = [
    f"attn.{name}"
    for name in ("to_k", "to_q", "to_v", "to_out.0", "add_k_proj", "add_q_proj", "add_v_proj", "to_add_out")
]
ADAPTED += [f"{name}.net.{place}" for name in ("ff", "ff_context") for place in ("0.proj", "2")]


class Flux(nn.Module):
    """Flux with adapters in fp32, and the loss of a step under autocast."""

    def __init__(self, rank, **sizes):
        super().__init__()
        self.flux = FluxTransformer2DModel(**sizes, guidance_embeds=True).to(torch.bfloat16).requires_grad_(False)
        self.flux.add_adapter(LoraConfig(r=rank, target_modules=ADAPTED))
        for parameter in self.flux.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()

    def forward(self, target, **given):
        with torch.autocast("cuda", torch.bfloat16):
            found = self.flux(**given, return_dict=False)[0]
        return (found.float() - target.float()).square().mean()


def given(batch, tokens, words):
    """The arguments of a forward: latents of so many tokens, and a prompt."""
    shapes = {
        "hidden_states": (batch, tokens, 64), "encoder_hidden_states": (batch, words, 4096), "pooled_projections": (batch, 768),
        "timestep": (batch,), "guidance": (batch,), "target": (batch, tokens, 64), "img_ids": (tokens, 3), "txt_ids": (words, 3),
    }  # fmt: skip
    return {name: (shape, torch.bfloat16) for name, shape in shapes.items()}


@pytest.mark.parametrize("seed", range(4))
def test_blocks_with_adapters_save_what_the_formula_says(seed):
    draw = Random(seed)
    heads, rank, batch, tokens, words = (
        draw.choice(some) for some in ([2, 3, 4], [2, 4, 16], [1, 2], [64, 144], [32, 77])
    )
    single, double = draw.randint(1, 3), draw.randint(1, 3)
    sizes = {"num_layers": double, "num_single_layers": single, "num_attention_heads": heads}
    trace = eb.dry_run(lambda: Flux(rank, **sizes), eb.Setup(precision="own"), batch=given(batch, tokens, words))
    at = trace.marks["after_forward"]
    found = sum(
        a.bytes for a in trace.owners(at) if "transformer_blocks" in a.owner and a.part in ("activations", "casts")
    )
    said = {"width": 128 * heads, "heads": heads, "head_width": 128, "batch": batch, "sequence": tokens + words}
    assert found == eb.formula("diffusion.blocks")(
        **said, adapter_rank=rank, single_layers=single, double_layers=double
    )


def test_the_explorer_has_the_parameters_that_the_classes_have():
    """The published configurations' own: Flux, T5 and CLIP, and the VAE."""
    from diffusers import AutoencoderKL
    from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

    from everybyte.explore.beside import said

    vae = {
        "block_out_channels": (128, 256, 512, 512),
        "latent_channels": 16,
        "layers_per_block": 2,
        "use_quant_conv": False,
    }
    vae |= {
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "use_post_quant_conv": False,
    }
    t5 = T5Config(d_model=4096, d_ff=10240, num_layers=24, num_heads=64, feed_forward_proj="gated-gelu")
    clip = CLIPTextConfig(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12)
    with torch.device("meta"):
        made = (
            FluxTransformer2DModel(guidance_embeds=True),
            T5EncoderModel(t5),
            CLIPTextModel(clip),
            AutoencoderKL(**vae),
        )
    flux, *encoders, latents = (sum(p.numel() for p in one.parameters()) for one in made)
    assert said("diffusion")["parameters"] == {"transformer": flux, "encoders": sum(encoders), "vae": latents}
