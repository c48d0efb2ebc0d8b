"""Derived formulas against the dry run, at points that the derivation did not see, of Hugging Face configurations of many families.

python tools/derivations.py            # all, at their real dimensions
python tools/derivations.py opt-1.3b mixtral-8x7b
python tools/derivations.py --points 3 --shard 0/2

What the last whole run said is in derivations.txt.
"""

import argparse
import random
import sys
import time
import warnings

import torch
import transformers
import transformers.masking_utils  # as a model would

import everybyte as eb

#: name -> (configuration class, precision (and attention, where it knows no other), its dimensions as published in the model's config.json on huggingface.co).
CONFIGS = {
    "gpt2": ("GPT2", "bf16-mixed", {}),
    "gpt2-xl": ("GPT2", "fp32", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "opt-1.3b": ("OPT", "bf16", {"hidden_size": 2048, "num_hidden_layers": 24, "ffn_dim": 8192, "num_attention_heads": 32, "word_embed_proj_dim": 2048}),
    "gpt-neox-20b": ("GPTNeoX", "bf16", {}),
    "pythia-1.4b": ("GPTNeoX", "fp16-mixed", {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24, "num_attention_heads": 16, "vocab_size": 50304}),
    "gpt-j-6b": ("GPTJ", "bf16 eager", {}),
    "codegen-350m": ("CodeGen", "bf16-mixed eager", {"n_embd": 1024, "n_layer": 20, "n_head": 16, "vocab_size": 51200}),
    "bloom-7b1": ("Bloom", "bf16 eager", {"hidden_size": 4096, "n_layer": 30, "n_head": 32, "vocab_size": 250880}),
    "mpt-7b": ("Mpt", "bf16 eager", {"d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432, "max_seq_len": 2048}),
    "llama-2-7b": ("Llama", "bf16-master", {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096}),
    "llama-3.1-8b": ("Llama", "bf16-mixed", {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072}),
    "llama-3.1-70b": ("Llama", "bf16", {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072}),
    "llama-3.2-1b": ("Llama", "fp32", {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": True}),
    "mistral-7b-v0.1": ("Mistral", "bf16", {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768, "sliding_window": 4096}),
    "mixtral-8x7b": ("Mixtral", "bf16", {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768}),
    "qwen2.5-0.5b": ("Qwen2", "bf16-mixed", {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768, "tie_word_embeddings": True}),
    "qwen2.5-72b": ("Qwen2", "bf16", {"hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 152064, "max_position_embeddings": 32768}),
    "qwen3-0.6b": ("Qwen3", "bf16-mixed", {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": True}),
    "qwen3-8b": ("Qwen3", "bf16", {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960}),
    "qwen3-30b-a3b": ("Qwen3Moe", "bf16", {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "max_position_embeddings": 40960}),
    "gemma-2b": ("Gemma", "bf16-mixed", {"hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 256000}),
    "gemma-2-9b": ("Gemma2", "bf16 eager", {"hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 256000}),
    "gemma-3-1b": ("Gemma3Text", "bf16-mixed", {"hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144, "sliding_window": 512, "max_position_embeddings": 32768}),
    "phi-2": ("Phi", "fp16-mixed", {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 51200}),
    "phi-3-mini": ("Phi3", "bf16", {}),
    "falcon-7b": ("Falcon", "bf16", {"hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71, "multi_query": True, "parallel_attn": True, "bias": False, "alibi": False, "new_decoder_architecture": False, "vocab_size": 65024}),
    "stablelm-2-1.6b": ("StableLm", "bf16-mixed", {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 100352, "use_qkv_bias": True}),
    "starcoder2-3b": ("Starcoder2", "bf16", {"sliding_window": 4096, "max_position_embeddings": 16384}),
    "starcoder-1b": ("GPTBigCode", "fp32", {"n_embd": 2048, "n_layer": 24, "n_head": 16, "n_inner": 8192, "n_positions": 8192, "vocab_size": 49152}),
    "olmo-1b": ("Olmo", "bf16-mixed", {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 16, "vocab_size": 50304}),
    "olmo-2-7b": ("Olmo2", "bf16", {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 100352, "max_position_embeddings": 4096}),
    "olmoe-1b-7b": ("Olmoe", "bf16", {"hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16, "vocab_size": 50304}),
    "command-r-35b": ("Cohere", "bf16", {}),
    "granite-3.0-8b": ("Granite", "bf16", {"hidden_size": 4096, "intermediate_size": 12800, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 49155, "max_position_embeddings": 4096}),
    "smollm3-3b": ("SmolLM3", "bf16", {}),
    "glm-4-9b": ("Glm", "bf16", {}),
    "nemotron-4-4b": ("Nemotron", "bf16", {"hidden_size": 3072, "intermediate_size": 9216, "num_hidden_layers": 32, "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 256000, "max_position_embeddings": 4096}),
    "deepseek-v2-lite": ("DeepseekV2", "bf16", {"hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "vocab_size": 102400, "max_position_embeddings": 4096}),
    "gpt-oss-20b": ("GptOss", "bf16 eager", {"num_hidden_layers": 24, "num_local_experts": 32, "vocab_size": 201088}),
    "xglm-564m": ("XGLM", "bf16-mixed eager", {}),
}  # fmt: skip


def config(name: str):
    """The configuration of that name."""
    kind, _, sizes = CONFIGS[name]
    return getattr(transformers, f"{kind}Config")(**sizes)


def setup(name: str) -> eb.Setup:
    """What it is derived under."""
    precision, _, attention = CONFIGS[name][1].partition(" ")
    dropouts = ("resid_pdrop", "hidden_dropout", "dropout", "attention_dropout")
    dropout = max(
        getattr(config(name), field, 0.0) or 0.0 for field in dropouts
    )  # a config's own, which the setup must say too
    return eb.Setup(precision=precision, attention=attention or "flash", dropout=dropout)


def hidden(derivation, count: int, chance: random.Random) -> list[tuple[int, int]]:
    """So many points of the domain, sizes that a reader would take and odd ones, by chance."""
    (least, most), (short, long) = derivation.range("batch"), derivation.range("sequence")
    points = []
    while len(points) < count:
        batch = chance.choice([1, 2, chance.randint(1, 9), chance.randint(1, 64)])
        sequence = chance.choice([2 ** chance.randint(4, 15), chance.randint(1, 300), chance.randint(1, 8192)])
        if least <= batch <= most and short <= sequence <= long and (batch, sequence) not in derivation.checked:
            points.append((batch, sequence))
    return points


def differences(model, setup, derivation, points) -> list[str]:
    """What the formula and the dry run say differently at the points, in words."""
    found = []
    for batch, sequence in points:
        counted = eb.dry_run(model, setup.replace(batch=batch, sequence=sequence))
        derived = derivation.at(batch, sequence)
        for name in ("peak", "parts", "phases", "peak_at"):
            if getattr(counted, name) != getattr(derived, name):
                found.append(
                    f"{name} at {batch} x {sequence}: {getattr(counted, name)}, derived {getattr(derived, name)}"
                )
    return found


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CONFIGS)}")
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--shard", default="0/1", help="the n-th of so many shares of the list")
    options = parser.parse_args(arguments)
    share, shares = map(int, options.shard.split("/"))
    warnings.simplefilter("ignore")
    names = options.names or list(CONFIGS)[share::shares]
    faults = 0
    print(
        f"PyTorch {torch.__version__}, transformers {transformers.__version__}, {len(names)} configurations", flush=True
    )
    for name in names:
        model, run = config(name), setup(name)
        start, spent = time.perf_counter(), time.process_time()
        try:
            derivation = eb.derive(model, run, keep=False)
        except Exception as error:
            faults += 1
            print(f"{name:18} {type(error).__name__}: {str(error)[:700]}", flush=True)
            continue
        took, cpu = time.perf_counter() - start, time.process_time() - spent
        points = hidden(derivation, options.points, random.Random(name))
        found = differences(model, run, derivation, points)
        faults += bool(found)
        print(
            f"{name:18} {CONFIGS[name][1]:12} {took:5.1f} s ({cpu:.1f} s CPU)  {len(derivation.cases)} cases, "
            f"{len(derivation.regions)} regions, {len(points)} points: {len(found)} differences",
            *found[:3], sep="\n    ", flush=True,
        )  # fmt: skip
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
