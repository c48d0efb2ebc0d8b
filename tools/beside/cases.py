"""What is run beside a rehearsal: a script each, its words, and whether it must have the GPU for itself."""

import json

#: Fields of transformers' configurations.
LLAMA_1B = (
    "hidden_size=2048 intermediate_size=8192 num_hidden_layers=16 num_attention_heads=32 num_key_value_heads=8 head_dim=64 "
    "vocab_size=128256 max_position_embeddings=131072 tie_word_embeddings=true"
)
QWEN3 = (
    "hidden_size=1024 intermediate_size=3072 num_hidden_layers=28 num_attention_heads=16 num_key_value_heads=8 head_dim=128 "
    "vocab_size=151936 tie_word_embeddings=true"
)
NO_DROPOUT = "resid_pdrop=0.0 attn_pdrop=0.0 embd_pdrop=0.0"
SMALL = "hidden_size=1024 intermediate_size=2816 num_hidden_layers=3 num_attention_heads=16 num_key_value_heads=4 vocab_size=32003"
HEADS = f"{SMALL} head_dim=64"
WINDOW = f"{HEADS} sliding_window=256"
FAMILIES = {
    "llama": SMALL,
    "mistral": f"{SMALL} sliding_window=256",
    "qwen2": SMALL,
    "qwen3": HEADS,
    "gemma": HEADS,
    "gemma2": WINDOW,
    "gemma3_text": WINDOW,
    "phi3": f"{SMALL} pad_token_id=0",
    "mixtral": f"{SMALL} num_local_experts=4",
    "gpt_oss": f"{WINDOW} num_local_experts=4",
    "opt": "hidden_size=1024 ffn_dim=4096 num_hidden_layers=3 num_attention_heads=16 vocab_size=32003 word_embed_proj_dim=1024 dropout=0.0",
    "gpt_neox": SMALL.replace(" num_key_value_heads=4", ""),
    "gpt2": f"n_embd=1024 n_layer=3 n_head=16 vocab_size=32003 {NO_DROPOUT}",
    "olmo2": SMALL,
}
MIXTURE = "moe_intermediate_size=512 num_experts_per_tok=4"
LATENT = f"{SMALL.replace('value_heads=4', 'value_heads=16')} {MIXTURE} kv_lora_rank=256 q_lora_rank=512 qk_rope_head_dim=64 v_head_dim=128"
LATENT += " qk_nope_head_dim=128 n_routed_experts=16 n_shared_experts=1 first_k_dense_replace=1 n_group=4 topk_group=2"
LINEAR = "linear_num_value_heads=8 linear_num_key_heads=4 linear_key_head_dim=128 linear_value_head_dim=128"
FOUR = HEADS.replace("layers=3", "layers=4")
#: Models of 2025 and 2026, and the ways to train with less.
LATER = {
    "deepseek_v3": LATENT,
    "deepseek_v2": LATENT,
    "glm4_moe": f"{HEADS} {MIXTURE} n_routed_experts=16 n_shared_experts=1 first_k_dense_replace=1 n_group=1 topk_group=1",
    "glm4": f"{HEADS} pad_token_id=0",
    "qwen3_moe": f"{HEADS} {MIXTURE} num_experts=16",
    "qwen3_next": f"{FOUR} {MIXTURE} {LINEAR} num_experts=16 shared_expert_intermediate_size=512",
    "qwen3_5_text": f"{FOUR} {LINEAR}",
    "mamba2": "hidden_size=1024 num_heads=32 head_dim=64 state_size=128 num_hidden_layers=3 vocab_size=32003",
    "falcon_h1": f"{HEADS} mamba_d_ssm=1024 mamba_n_heads=16 mamba_d_head=64 mamba_d_state=64",
    "nemotron_h": 'hidden_size=1024 intermediate_size=2816 hybrid_override_pattern="M*-" num_hidden_layers=3 num_attention_heads=16 '
    "num_key_value_heads=4 head_dim=64 mamba_num_heads=16 mamba_head_dim=64 ssm_state_size=64 vocab_size=32003",
    "lfm2": f"{SMALL} block_ff_dim=2816",
    "llama4_text": f"{HEADS} intermediate_size_mlp=2816 num_local_experts=4",
    "gemma4_text": WINDOW,
    "gemma3n_text": f"{WINDOW} vocab_size_per_layer_input=32003 num_kv_shared_layers=0",
    "olmo3": WINDOW,
    "smollm3": f"{SMALL} pad_token_id=0",
    "minimax_m2": f"{HEADS} num_local_experts=8",
    "kimi_linear": f"{FOUR} {MIXTURE} pad_token_id=0",
    "ernie4_5_moe": f"{HEADS} {MIXTURE} moe_num_experts=16",
}
#: Small models with a delta rule, wide keys and narrow values, so that it has the most; the versions that run them.
TINY = "hidden_size=256 intermediate_size=320 num_attention_heads=4 num_key_value_heads=2 head_dim=64 num_hidden_layers=4 vocab_size=203"
ROUTED = "moe_intermediate_size=64 num_experts_per_tok=2 num_experts=16"
DECAYS = f'{TINY} {ROUTED} pad_token_id=0 kv_lora_rank=64 linear_attn_config={{"num_heads":8,"head_dim":128}}'


def _delta(values, keys, width, columns):
    return (
        f"{TINY} linear_num_value_heads={values} linear_num_key_heads={keys} linear_key_head_dim={width} "
        f"linear_value_head_dim={columns}"
    )


NEXT = f"{ROUTED} shared_expert_intermediate_size=64"
HYBRIDS = {
    "qwen3_next fla bf16": f"qwen3_next 2 1000 bf16,sdpa,steady {_delta(16, 4, 192, 32)} {NEXT}",
    "qwen3_next fla mixed": f"qwen3_next 2 1000 mixed,sdpa,steady {_delta(16, 4, 192, 32)} {NEXT}",
    "qwen3_next fla mixed full": f"qwen3_next 3 300 mixed,sdpa,steady,full {_delta(16, 4, 256, 32)} {NEXT}",
    "qwen3_next fla bf16 full": f"qwen3_next 2 512 bf16,sdpa,steady,full {_delta(8, 8, 256, 32)} {NEXT}",
    "qwen3_next fla mixed short": f"qwen3_next 40 40 mixed,sdpa,steady {_delta(16, 8, 192, 32)} {NEXT}",
    "qwen3_next fla fp32 full": f"qwen3_next 2 300 fp32,sdpa,steady,full {_delta(16, 4, 256, 32)} {NEXT}",
    "qwen3_5_text fla mixed full": f"qwen3_5_text 2 1000 mixed,sdpa,steady,full {_delta(16, 4, 256, 32)}",
    "olmo_hybrid fla mixed full": f"olmo_hybrid 2 1000 mixed,sdpa,steady,full {_delta(8, 8, 256, 64)} pad_token_id=0",
    "kimi_linear fla mixed full": f"kimi_linear 2 300 mixed,sdpa,steady,full {DECAYS}",
    "kimi_linear fla bf16": f"kimi_linear 2 1000 bf16,sdpa,steady {DECAYS}",
}
FLA = ["--with", "fla-core==0.6.0", "transformers==5.23.0"]
METHODS = ("foreach", "8bit", "4bit", "fp8", "backward", "muon", "offload", "pinned", "liger", "adafactor")
#: A linear layer by its name here and its words (`linear.py`): on Hopper and later; on Blackwell.
LINEAR = {
    "fp8": ("bf16", "bf16 compile", "tensorwise", "tensorwise compile", "rowwise", "rowwise compile", "blockwise"),
    "blackwell": ("mxfp8", "nvfp4"),
    "gathered": ("gather", "gather8"),
}
#: Five layers, checkpointed and compiled or not (`layers.py`).
LAYERS = ("", "checkpoint", "compile", "compile checkpoint", "reduce-overhead", "compile budget=0.5", "compile budget=0",
          "checkpoint layers=10", "compile checkpoint layers=10",
          *(f"{how}{block} layers={n}" for block in ("gpt=float32", "gpt=bfloat16", "llama=bfloat16") for how in ("", "compile ") for n in (1, 2)))  # fmt: skip
EPOCHS = {
    "random": ("random bf16", ""),
    "largest first": ("largest bf16", ""),
    "sorted": ("sorted bf16", ""),
    "random, emptied": ("random bf16,empty", ""),
    "random, expandable": ("random bf16", "expandable_segments:True"),
    "random, rounded": ("random bf16", "roundup_power2_divisions:8"),
}
#: Name -> (model type, sequence, words, fields, the largest batch of `eb.fit` on an H200 by default, and with expandable segments).
BORDERS = {
    "llama-1b bf16": ("llama", 4096, "bf16", LLAMA_1B, 10, 10),
    "llama-1b mixed full": ("llama", 4096, "mixed,full", LLAMA_1B, 17, 19),
    "gpt2 mixed": ("gpt2", 1024, "mixed", NO_DROPOUT, 96, 104),
    "qwen3 bf16 fused": ("qwen3", 2048, "bf16,fused", QWEN3, 17, 18),
    "llama-1b fp32": ("llama", 1024, "fp32", LLAMA_1B, 17, 18),
    "gpt2 eager mixed": ("gpt2", 1024, "mixed,eager", NO_DROPOUT, 60, 63),
}
LOOPS = ("trainer 1", "trainer 2 bf16", "accelerate 1", "accelerate 2 bf16", "plain 1 bf16", "torchtitan 2")
#: The group `scripts`: script -> name -> words.
SCRIPTS = {
    "nanogpt": {
        "nanogpt": "FOLDER",
        "nanogpt fp16": "FOLDER --dtype=float16",
        "nanogpt fused": "FOLDER --fused=True",
        "nanogpt fp32": "FOLDER --dtype=float32 --batch_size=4",
    },
    "causal_lm": {
        "run_clm gpt2": "gpt2 --batch 8 --length 1024 --on cuda",
        "run_clm llama-1b": "llama-1b --batch 2 --length 2048 --on cuda",
        "run_clm llama-1b eager": "llama-1b --batch 1 --length 1024 --attention eager --on cuda",
        "run_clm llama-1b checkpointed": "llama-1b --batch 4 --length 2048 --checkpointing --on cuda",
    },
    "trainer": {"Trainer gpt2": "FOLDER"},
    "lora": {"LoRA llama-1b": ""},
    "loops": {f"loop {words}": f"FOLDER {words}" for words in LOOPS},
    "fsdp2": {"fsdp2 debug": "debug 8 512", "fsdp2 1b": "1b 2 2048"},
    "generate": {"generate llama": f"/dev/null llama 4 256 8 0 {SMALL}"},
    "compiled": {f"compiled {words}": words for words in ("default 512", "default 511", "reduce-overhead 512")},
    "triton_kernels": {"triton kernels": ""},
    "outside": {"outside": ""},
    "attention": {"attention": ""},
    "convolutions": {"convolutions": ""},
    "rates": {"rates": ""},
}
COMPILED = {
    "nanogpt compiled": "FOLDER --compile=True --n_layer=4",
    "nanogpt compiled 50304": "FOLDER --compile=True --n_layer=4 --vocab_size=50304",
}
#: Scripts that run alone on a GPU; that import transformers.
ALONE, IMPORTS = ("outside", "rates"), (
    "causal_lm", "trainer", "lora", "loops", "generate", "decoder", "epoch", "methods", "phases", "pictures", "sft",
    "linear_attention",
)  # fmt: skip
TIMES = {
    "llama-1b bf16 4096": f"llama 4 4096 bf16,times {LLAMA_1B}",
    "llama-1b mixed 4096": f"llama 4 4096 mixed,times {LLAMA_1B}",
    "llama-1b bf16 full 4096": f"llama 4 4096 bf16,full,times {LLAMA_1B}",
    "qwen3-0.6b bf16 2048": f"qwen3 8 2048 bf16,times {QWEN3}",
}


def case(group, name, script, words, **more):
    """One case. words: one text, or a list of words. how: `alone` or `shared`; environment: variables."""
    said = {"group": group, "name": name, "script": script, "words": words.split() if isinstance(words, str) else words}
    said |= {"how": "alone" if script in ALONE else "shared", "imports": "transformers" if script in IMPORTS else ""}
    return said | more


def configured(setting):
    """The variables that set PyTorch's allocator, by its new name and its old one."""
    return dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), setting)


def cases(kernels: list) -> list[dict]:
    """All of them. kernels: what `tests/rehearsal/kernels.py` is asked, a list for each kernel."""
    made = [case("scripts", name, script, words) for script, named in SCRIPTS.items() for name, words in named.items()]
    made += [case("compiled", name, "nanogpt", words) for name, words in COMPILED.items()]
    made.append(
        case("compiled", "nanogpt compiled padded", "nanogpt", COMPILED["nanogpt compiled"], options=["--padded"])
    )
    made.append(case("kernels", "kernels", "kernels", [json.dumps(kernels)]))
    for kind, fields in FAMILIES.items():
        attention = "eager" if kind in ("gemma2", "gpt_oss") else "sdpa"
        for words in (f"bf16,{attention}", f"mixed,{attention},full", "mixed,eager"):
            made.append(case("families", f"{kind} {words}", "decoder", f"{kind} 4 512 {words} {fields}"))
    for name, (kind, length, words, fields, *batches) in BORDERS.items():
        for most, setting in zip(batches, ("", "expandable_segments:True"), strict=True):
            said = {"how": "alone"}
            if setting:
                said["environment"] = configured(setting)
            for batch in (most, most + 1):
                title = f"{name}{' expandable' * bool(setting)} batch {batch}"
                made.append(case("borders", title, "decoder", f"{kind} {batch} {length} {words} {fields}", **said))
    for kind, fields in LATER.items():
        attention = "eager" if kind == "mamba2" else "sdpa"
        for words in (f"bf16,{attention}", f"mixed,{attention},full"):
            made.append(case("later", f"{kind} {words}", "decoder", f"{kind} 4 512 {words} {fields}"))
    made += [case("methods", method, "methods", f"{method} 4 1024 {SMALL}") for method in METHODS]
    for group, kinds in LINEAR.items():
        for kind in kinds:
            words = " ".join((kind.split()[0], "8192 4096 14336", *kind.split()[1:]))
            made.append(case(group, f"linear {kind}", "linear", words))
    made += [case("layers", f"layers {words}".strip(), "layers", words) for words in LAYERS]
    for words in ("bf16,sdpa", "bf16,sdpa,compile"):
        made.append(case("layers", f"a Llama {words}", "decoder", f"llama 4 1024 {words} {SMALL}"))
    for how in ("", ",blocks", ",compile", ",full", ",full,compile"):
        made.append(case("whole", f"llama-1b bf16{how}", "decoder", f"llama 2 4096 bf16,sdpa,left{how} {LLAMA_1B}"))
    for name, (words, setting) in EPOCHS.items():
        said = {"environment": configured(setting)} if setting else {}
        order, how = words.split()
        made.append(case("epochs", f"epoch {name}", "epoch", f"llama 4 150 {order} {how} {SMALL}", **said))
    made.append(case("phases", "phases", "phases", "FOLDER"))
    made += [case("pictures", f"pictures {w}", "pictures", f"2 448 512 bf16{w}") for w in ("", ",full", ",frozen")]
    made += [case("trl", f"sft {words}", "sft", f"FOLDER {words}") for words in ("nll", "nll,full", "dft")]
    for kind in ("gdn", "kda"):
        made += [
            case("linear", f"{kind} {how}", "linear_attention", f"{kind} {how} 512 1000 4096")
            for how in ("torch", "fla")
        ]
    made.append(case("linear", "kimi_linear fla", "decoder", f"kimi_linear 4 512 bf16,sdpa {LATER['kimi_linear']}"))
    made += [case("hybrids", name, "decoder", words, options=FLA) for name, words in HYBRIDS.items()]
    made += [case("times", name, "decoder", words, how="alone") for name, words in TIMES.items()]
    for number, one in enumerate(made):
        if one["script"] == "fsdp2" or one["group"] == "gathered":  # a process of torchrun's, alone
            one["environment"] = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                                  "MASTER_PORT": str(29600 + number)}  # fmt: skip
    return made
