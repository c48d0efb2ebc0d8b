"""A training step of Qwen3.5, as FakeGPU's authors measured it: `verification/qwen_sft_memory_worker.py` and its two of FSDP.

bf16 weights, the loss of Hugging Face's model, AdamW tensor by tensor; adapters by PEFT on all linear layers.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

#: width, feed-forward's width
MODELS = {"0.8b": (1024, 3584), "2b": (2048, 6144)}


def made(given):
    width, ffn = MODELS[given.model]
    config = Qwen3_5TextConfig(
        hidden_size=width, intermediate_size=ffn, num_hidden_layers=24, num_attention_heads=8, num_key_value_heads=2, head_dim=256,
        linear_num_key_heads=16, linear_num_value_heads=16, linear_key_head_dim=128, linear_value_head_dim=128, vocab_size=248320,
        tie_word_embeddings=True, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = Qwen3_5ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    if given.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(
            model, LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, task_type="CAUSAL_LM", target_modules="all-linear")
        )
    if given.checkpoint:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if given.lora:
            model.enable_input_require_grads()
    model.to_empty(device="cpu")
    model.tie_weights()
    return model.train()


def shared(model, given):
    """Over the ranks: FSDP1 with a unit a layer, or FSDP2, whose weights come divided."""
    blocks = model.base_model.model.model.layers if given.lora else model.model.layers
    if given.sharding == "fsdp1":
        return FullyShardedDataParallel(
            model, auto_wrap_policy=ModuleWrapPolicy({type(blocks[0])}), device_id=torch.cuda.current_device(),
            sharding_strategy=ShardingStrategy.FULL_SHARD, backward_prefetch=None, forward_prefetch=False, use_orig_params=False,
        )  # fmt: skip
    for block in blocks:
        fully_shard(block, reshard_after_forward=True)
    return fully_shard(model, reshard_after_forward=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="0.8b")
    for name, default in (("sequence", 16), ("accumulation", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in ("lora", "checkpoint"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--sharding", choices=("fsdp1", "fsdp2"))
    given = parser.parse_args()
    model = made(given)
    if given.sharding:
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        model = shared(model, given)
    else:
        model.to("cuda")
    shape = (1, given.sequence)
    batches = [
        {
            "input_ids": torch.full(shape, 100).to("cuda"),
            "labels": torch.full(shape, 100).to("cuda"),
            "position_ids": torch.arange(given.sequence).expand(3, *shape).clone().to("cuda"),
        }
        for _ in range(given.accumulation)
    ]
    adam = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5, foreach=False)
    for number, batch in enumerate(batches, 1):
        outputs = model(**batch, use_cache=False)
        loss = outputs.loss / given.accumulation
        loss.backward()
        if number < given.accumulation:
            del outputs, loss
    adam.step()


main()
