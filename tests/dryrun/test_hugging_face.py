"""Every model of the catalog runs: the book's reference, or Hugging Face's code from the catalog's dimensions; what it cannot do is refused."""

import re
import subprocess
import sys
from dataclasses import fields

import pytest
import torch

import everybyte as eb
from everybyte.ask.choices import DTYPE_BYTES
from everybyte.dryrun import Counted

transformers = pytest.importorskip("transformers")

#: A small model of each architecture that the references do not build: the catalog's, with these dimensions.
TINY = {"layers": 2, "width": 48, "heads": 3, "vocabulary": 101, "positions": 64}
GROUPED = TINY | {"heads": 4, "kv_heads": 2, "head_width": 16}
SMALL = {
    "bert-base": TINY,
    "opt-350m": TINY | {"embedding_width": 24, "learned_positions": 66},
    "pythia-14m": TINY,
    "gemma-2-2b": GROUPED | {"ffn_width": 96, "window": 16},
    "gpt-oss-20b": GROUPED | {"width": 64, "ffn_width": 64, "expert_width": 64, "experts": 4, "experts_per_token": 2, "window": 16},
    "gemma-3-1b": GROUPED | {"ffn_width": 96, "window": 16, "full_every": 2},
    "llama-4-scout": GROUPED | {"width": 64, "expert_width": 64, "experts": 4, "window": 16, "full_every": 2},
    "deepseek-v3": TINY | {
        "layers": 3, "width": 64, "heads": 4, "kv_heads": 4, "head_width": 24, "ffn_width": 96, "experts": 16,
        "expert_width": 32, "experts_per_token": 4, "dense_layers": 1, "query_rank": 16, "latent_rank": 16, "rope_width": 8,
        "value_width": 16,
    },
    "glm-4.5": GROUPED | {"layers": 3, "ffn_width": 96, "experts": 16, "expert_width": 32, "experts_per_token": 4, "dense_layers": 1},
}  # fmt: skip
SMALL = {name: eb.model(name).replace(**sizes) for name, sizes in SMALL.items()}
#: Why some have other parameters than the catalog counts, and how many more.
DIFFERENT = {
    "bert-base": ("BertForMaskedLM has a head for masked tokens, and no pooler", 2 * 48 + 101),
    "deepseek-v3": ("the biases of its routers have no gradient, and are buffers", -2 * 16),
    "glm-4.5": ("the biases of its routers have no gradient, and are buffers", -2 * 16),
}
SETUP = eb.Setup(batch=2, sequence=32, attention="eager")


def test_each_architecture_of_the_catalog_has_a_small_one():
    prefixes = {name.split("-")[0] for name in SMALL}
    assert {name.split("-")[0] for name, m in eb.models("reference").items() if m.family is None} == prefixes | {
        "kimi"  # DeepSeek-V3's code
    }
    assert all(m.family is None for m in SMALL.values())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16"])
@pytest.mark.parametrize("name", SMALL)
def test_it_has_the_models_parameters_or_says_why_not(name, precision):
    model, setup = SMALL[name], SETUP.replace(precision=precision)
    trace = eb.dry_run(model, setup)
    if name in DIFFERENT:
        why, more = DIFFERENT[name]
        assert trace.model == Counted(f"{name} ({why})", model.parameters + more)
    else:
        assert trace.model is model
    assert trace.parts_at("rest")["parameters"] == trace.model.parameters * DTYPE_BYTES[setup.dtypes.weights]
    assert trace.phases["after_forward"] > trace.phases["rest"]
    assert trace.as_dict()["setup"] == setup.of(model.own).as_dict()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SMALL)
def test_full_checkpointing_is_hugging_faces(name):
    for precision in ("fp32", "bf16-mixed"):
        setup = SETUP.replace(precision=precision, optimizer="sgd")
        plain, full = (eb.dry_run(SMALL[name], setup.replace(checkpointing=c)) for c in ("none", "full"))
        assert full.phases["after_forward"] < plain.phases["after_forward"]
        assert full.phases["after_backward"] == plain.phases["after_backward"]


@pytest.mark.parametrize("name", ["gemma-2-2b", "gpt-oss-20b"])
def test_attention_that_no_kernel_has_is_refused(name):
    with pytest.raises(
        ValueError, match=r"^Setup\.attention: 'flash' is not what \w+ForCausalLM has; allowed: 'eager'"
    ):
        eb.dry_run(SMALL[name], SETUP.replace(attention="flash"))


@pytest.mark.parametrize("name", ["pythia-14m", "deepseek-v3"])
def test_it_runs_on_many_gpus(name):
    setup = SETUP.replace(precision="bf16-mixed", gpus=8, accumulation=2)
    for changes in ({}, {"sharding": "zero1"}, {"sharding": "zero3", "checkpointing": "full", "no_sync": True}):
        assert eb.dry_run(SMALL[name], setup.replace(**changes)).peak > 0


#: What a model of Hugging Face's would lose silently.
LOST = {
    "loss": {"loss": "chunked"},
    "checkpointing": {"checkpointing": "selective"},
    "sharding_units": {"gpus": 2, "sharding": "zero3", "sharding_units": "block+ends"},
}


@pytest.mark.parametrize("model", [SMALL["pythia-14m"], "config"], ids=["model", "config"])
@pytest.mark.parametrize("field", LOST)
def test_what_it_would_lose_is_refused_by_name(field, model):
    if model == "config":
        model = transformers.LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=1, vocab_size=101)
    with pytest.raises(
        ValueError, match=rf"^Setup\.{field}: '{re.escape(LOST[field][field])}' .*a Hugging Face model.*; allowed: "
    ):
        eb.dry_run(model, SETUP.replace(**LOST[field]))
    for checkpointing in ("every-k", "operations"):
        with pytest.raises(ValueError, match=rf"^Setup\.checkpointing: '{checkpointing}' .* allowed: 'none' or 'full'"):
            eb.dry_run(model, SETUP.replace(checkpointing=checkpointing))


def test_a_configs_positions_bound_the_sequence():
    config = transformers.LlamaConfig(hidden_size=64, num_hidden_layers=1, vocab_size=101, max_position_embeddings=16)
    with pytest.raises(
        ValueError, match=r"^Setup\.sequence: 32 is more than the 16 positions of this LlamaConfig; allowed: 1 to 16"
    ):
        eb.dry_run(config, SETUP)
    unbounded = eb.model("llama-3.2-1b").replace(layers=1, vocabulary=101, positions=0)  # 0: no bound
    assert eb.dry_run(unbounded, SETUP).peak == eb.budget(unbounded, SETUP).peak


def test_a_configs_own_dropout_is_the_setups_too_or_refused():
    gpt2 = transformers.GPT2Config(n_embd=48, n_layer=2, n_head=3, vocab_size=101, n_positions=64)
    with pytest.raises(
        ValueError, match=r"^Setup\.dropout: 0\.0, and GPT2Config\.\w+ is 0\.1; allowed: 0\.1, .* or a config"
    ):
        eb.dry_run(gpt2, SETUP.replace(dropout=0.0))
    trace = eb.dry_run(gpt2, SETUP)
    assert trace.setup.dropout == 0.1 and trace.peak == eb.dry_run(gpt2, SETUP.replace(dropout=0.1)).peak
    masks = [a for a in trace.owners(trace.marks["after_forward"]) if a.operation == "native_dropout" and a.bytes]
    assert len({a.owner for a in masks}) == 1 + 2 * 3  # embeddings; of each block attention's weights and two results
    some = transformers.OPTConfig(
        hidden_size=48, ffn_dim=96, num_hidden_layers=2, num_attention_heads=3, vocab_size=101, word_embed_proj_dim=48,
        dropout=0.1, attention_dropout=0.0,
    )  # fmt: skip
    names = {
        a.owner for a in eb.dry_run(some, SETUP.replace(dropout=0.1)).allocations if a.operation == "native_dropout"
    }
    assert names and not any("attn" in name for name in names)  # what the config has not, the setup does not put there
    some.layerdrop = 0.2
    with pytest.raises(ValueError, match=r"^OPTConfig\.layerdrop: 0\.2 leaves layers out by chance"):
        eb.dry_run(some, SETUP.replace(dropout=0.1))


def test_an_encoder_is_trained_on_masked_tokens():
    config = transformers.BertConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=3, vocab_size=101)
    assert eb.dry_run(config, SETUP.replace(dropout=0.1)).model.name == "BertForMaskedLM"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
def test_checkpointing_works_where_modeling_utils_had_imported_it_by_name(precision):
    from transformers import modeling_utils

    assert modeling_utils.checkpoint is torch.utils.checkpoint.checkpoint
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=176, num_hidden_layers=3, num_attention_heads=4, vocab_size=101
    )
    setup = SETUP.replace(precision=precision, attention="flash", optimizer="sgd")
    plain, full = (eb.dry_run(config, setup.replace(checkpointing=c)) for c in ("none", "full"))
    tokens = (2, 32), torch.int64

    def own():
        module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train()
        module.config.use_cache = False
        module.activation_checkpointing_enable({"use_reentrant": False})
        return module

    mine = eb.dry_run(
        own, eb.Setup(precision=precision, optimizer="sgd"), batch={"input_ids": tokens, "labels": tokens}
    )
    assert mine.phases == full.phases and mine.peak == full.peak
    assert full.phases["after_forward"] < plain.phases["after_forward"]


@pytest.mark.parametrize("outputs", ["dropped", "kept"])
def test_a_config_s_cache_lives_as_long_as_the_outputs(outputs):
    """Under autocast the cache's copies of keys are fp32, and stand beside those that attention saves."""
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 176,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "vocab_size": 101,
    }
    setup = eb.Setup(batch=2, sequence=32, precision="bf16-mixed", optimizer="sgd", outputs=outputs)
    tokens, config = ((2, 32), torch.int64), lambda cached: transformers.LlamaConfig(**sizes, use_cache=cached)

    def own(cached):
        made = lambda: transformers.AutoModelForCausalLM.from_config(config(cached), attn_implementation="sdpa").train()  # noqa: E731
        return eb.dry_run(made, setup, batch={"input_ids": tokens, "labels": tokens})

    without, cached = own(False), own(True)
    for said, mine in ((False, without), (True, cached)):
        asked = eb.dry_run(config(said), setup)
        assert asked.phases == mine.phases and asked.peak == mine.peak
    stays = cached.phases["after_forward"] - without.phases["after_forward"]
    assert stays >= 3 * 2 * 32 * 64 * 4 if outputs == "kept" else stays == 0  # three layers' keys, in fp32
    for off in ({"checkpointing": "full"}, {"loop": "trainer", "outputs": "dropped"}):  # which switch it off
        said, unsaid = (eb.dry_run(config(cached), setup.replace(**off)) for cached in (True, False))
        assert said.phases == unsaid.phases


def test_a_model_of_no_known_kind_is_refused_by_name():
    strange = eb.Model(layers=2, width=48, heads=3, vocabulary=101, positions=64, activation="silu")
    with pytest.raises(
        ValueError, match=r"^Model\.activation: 'silu' of custom is not a GPT's; allowed: 'gelu' or .*; nor is it"
    ):
        eb.dry_run(strange, SETUP)
    for name, model in SMALL.items():
        for change in ({"fused": not model.fused}, {"ffn_bias": not model.ffn_bias}):
            with pytest.raises(
                ValueError, match=rf"^Model\.\w+: .* of {name} .*allowed: .*; nor is it like .* {name}, whose"
            ):
                eb.dry_run(model.replace(**change), SETUP)


def test_without_transformers_it_says_what_to_install():
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import everybyte as eb\n"
        "try: eb.dry_run(eb.model('pythia-14m', 'reference'), eb.Setup(batch=1, sequence=8))\n"
        "except ValueError as error: print(error)\n"
        "print(eb.dry_run(eb.model('pythia-14m', 'reference').replace(parallel_residual=False, learned_positions=2048, rotary_percent=100),"
        " eb.Setup(batch=1, sequence=8)).peak > 0)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith(
        "Model.parallel_residual: True of pythia-14m is not a GPT's; allowed: False. Hugging Face's GPTNeoX"
    )
    assert "pip install 'everybyte[models]'" in said and said.endswith("True\n")


def test_every_field_of_a_setup_is_honored_or_refused():
    """A field that is new must find its place here."""
    honored = {
        "batch", "sequence", "accumulation", "precision", "optimizer", "optimizer_impl", "attention", "linear_attention", "dropout",
        "master_gradients", "sharding", "gpus", "replicas", "offload", "no_sync", "buckets", "adapters", "quantization", "loop", "outputs", "zero_grad", "clip",
        "resharding", "resharding_gpus", "muon_gather", "fsdp_version", "optimizer_in_backward",
    }  # fmt: skip
    partly = {"checkpointing", "sharding_units"}
    refused = {"loss", "loss_chunks", "checkpoint_every", "mesh"}
    assert honored | partly | refused == {f.name for f in fields(eb.Setup)}
