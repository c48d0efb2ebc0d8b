"""A config.json is the catalog's model where it is one, and else one whose dry run, of transformers' own code, is the budget."""

import json
from dataclasses import fields

import pytest

import everybyte as eb
from everybyte.catalog import configs, models

transformers = pytest.importorskip("transformers")
hugging_face = pytest.importorskip("everybyte.dryrun.hugging_face")

#: What decides nothing, and is no field of what is compared.
APART = {"name", "published", "source"}
SMALL = {
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "vocab_size": 211,
}
#: What makes a small one of a kind; it is compared in fp32 and bf16.
MORE = {
    "gpt2": {"n_layer": 3, "n_embd": 64, "n_head": 4, "vocab_size": 211, "n_positions": 64},
    "llama": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 24},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 32},
    "gemma": {"num_key_value_heads": 1, "head_dim": 32},
    "gemma2": {"num_key_value_heads": 2, "head_dim": 32, "sliding_window": 24, "num_hidden_layers": 4},
    "gemma3_text": {"num_key_value_heads": 2, "head_dim": 32, "sliding_window": 24, "num_hidden_layers": 7},
    "phi3": {"num_key_value_heads": 2, "sliding_window": 24, "pad_token_id": 0},
    "mixtral": {"num_key_value_heads": 2, "num_local_experts": 4},
    "qwen3_moe": {"head_dim": 16, "moe_intermediate_size": 48, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True},
    "gpt_oss": {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 24, "num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {
        "num_key_value_heads": 4, "moe_intermediate_size": 48, "n_routed_experts": 8, "num_experts_per_tok": 2, "q_lora_rank": 48,
        "kv_lora_rank": 32, "qk_rope_head_dim": 16, "v_head_dim": 16, "qk_nope_head_dim": 16, "n_group": 2, "topk_group": 1,
        "first_k_dense_replace": 1,
    },
}  # fmt: skip
OURS = {name: model for name, model in models("transformers").items() if name != "gpt2-nobias"}


def config_of(kind, **more):
    """A small configuration of a kind, as transformers makes it; it trains without a cache, as a `Model` does."""
    small = {} if kind == "gpt2" else SMALL
    return transformers.AutoConfig.for_model(kind, **(small | {"use_cache": False} | MORE[kind] | more))


def read(name):
    """The catalog's model, its configuration's model; None where it is not read."""
    config = hugging_face.config_of(OURS[name])
    return config, (eb.from_config(config, name) if config.model_type in configs.KINDS else None)


def test_each_model_of_the_catalog_is_read_from_its_own_configuration():
    seen = set()
    for name, model in OURS.items():
        config, found = read(name)
        if found is None:
            continue
        seen.add(config.model_type)
        assert {f.name: getattr(found, f.name) for f in fields(eb.Model) if f.name not in APART} == {
            f.name: getattr(model, f.name) for f in fields(eb.Model) if f.name not in APART
        }, name
        assert eb.from_config(config.to_diff_dict(), name) == found and found.parameters == model.parameters
    assert seen == set(configs.KINDS) == set(MORE)


@pytest.mark.parametrize("kind", configs.KINDS)
def test_the_budget_of_a_configuration_is_its_dry_run(kind):
    config = config_of(kind)
    model = eb.from_config(config)
    for precision in ("fp32", "bf16"):
        setup = eb.Setup(
            batch=2, sequence=48, precision=precision, dropout=model.own["dropout"], attention=model.own["attention"]
        )
        predicted, counted = eb.budget(model, setup), eb.dry_run(config, setup)
        assert (predicted.peak, predicted.parts, predicted.phases) == (counted.peak, counted.parts, counted.phases)


@pytest.mark.parametrize(
    "kind", ["llama", "mistral", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "mixtral", "qwen3_moe", "gpt_oss"]
)
def test_heads_wider_than_the_model_are_counted(kind):
    """`head_dim` is a size in each kind that has one: what is listed as computed is read."""
    config = config_of(kind, head_dim=24)
    model = eb.from_config(config)
    setup = eb.Setup(batch=2, sequence=48, precision="bf16", attention=model.own["attention"])
    predicted, counted = eb.budget(model, setup), eb.dry_run(config, setup)
    assert model.head_width == 24 and predicted.peak == counted.peak and predicted.parts == counted.parts
    row = configs._ROWS[kind]
    assert {*row["follows"]} <= {*configs._kept(kind)[0]}


@pytest.mark.parametrize(
    ("kind", "sizes", "words"),
    [
        (
            "mixtral",
            {"intermediate_size": 37},
            r"Setup\.precision: 'bf16' multiplies experts' matrices in rows of 16 bytes, and expert_width is 37",
        ),
        ("gpt_oss", {"intermediate_size": 36}, "multiples of 8"),
        ("qwen3_moe", {"moe_intermediate_size": 44}, "multiples of 8"),
        ("llama", {"head_dim": 17}, r"Model\.head_width: 17 of llama, of which rotary positions turn pairs"),
    ],
)
def test_what_no_kernel_takes_is_refused_by_both(kind, sizes, words):
    """A grouped product's rows of 16 bytes, a rotary position's pairs; and where it generates."""
    setup = eb.Setup(batch=2, sequence=48, precision="bf16")
    model = eb.from_config(
        {"model_type": kind} | SMALL | {k: v for k, v in MORE[kind].items() if k != "use_cache"} | sizes
    )
    with pytest.raises(ValueError, match=words):
        eb.budget(model, setup)
    with pytest.raises(Exception, match="16 bytes|even rotary dimension"):
        eb.dry_run(config_of(kind, **sizes), setup)
    with pytest.raises(ValueError, match=r"Model\.(head|expert)_width: "):
        eb.serve(model, "h100-80gb", 64)


@pytest.mark.parametrize("kind", configs.KINDS)
def test_what_a_file_leaves_out_is_transformers_own(kind):
    """What a row says is usual is the class's default; and a file of nothing else is the class's own model."""
    row, usual = configs._ROWS[kind], transformers.AutoConfig.for_model(kind)
    instead = {ours: theirs for theirs, ours in row.get("instead", {}).items()}
    for field, value in row["usual"].items():
        assert getattr(usual, instead.get(field, field)) == value, field
    told = configs._EVERY["told"] | row["told"]
    refused = {*row.get("stated", ())}
    for field, allowed in told.items():
        value = getattr(usual, field, None)
        assert value is None or value in allowed or field in refused, field
    more = {field: row["told"][field][0] for field in refused}
    assert eb.from_config({"model_type": kind} | more) == eb.from_config(
        transformers.AutoConfig.for_model(kind, **more)
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [kind for kind in configs.KINDS if kind != "gpt2"])
def test_what_is_called_neutral_moves_no_byte(kind):
    more = {
        "rms_norm_eps": 1e-3, "initializer_range": 0.5, "bos_token_id": 3, "pretraining_tp": 2, "router_aux_loss_coef": 0.5,
        "max_window_layers": 1, "routed_scaling_factor": 3.0, "swiglu_limit": 5.0, "query_pre_attn_scalar": 16,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 64},
    }  # fmt: skip
    known = {*configs._EVERY["neutral"], *configs._ROWS[kind].get("neutral", ()), "rope_parameters"}
    known -= {"rope_parameters"} if kind == "gemma3_text" else set()  # which has two
    plain, odd = config_of(kind), config_of(kind, **{field: value for field, value in more.items() if field in known})
    setup = eb.Setup(batch=2, sequence=48, precision="bf16", attention=eb.from_config(plain).own["attention"])
    assert eb.from_config(plain) == eb.from_config(odd)
    assert eb.dry_run(plain, setup).phases == eb.dry_run(odd, setup).phases


@pytest.mark.parametrize(("kind", "field"), [("mistral", "sliding_window"), ("qwen2", "num_key_value_heads")])
def test_what_a_file_says_to_be_null_is_not_what_it_leaves_out(kind, field):
    """Mistral-7B-v0.3 says a window of null: it has none, where a file that says nothing has one of 4,096."""
    config = config_of(kind, num_attention_heads=16, **{field: None})
    model = eb.from_config(config.to_dict() | {field: None})
    assert (model.window, model.kv_heads) == ((0, 2) if kind == "mistral" else (0, 16))
    setup = eb.Setup(batch=2, sequence=48, precision="bf16")
    assert eb.budget(model, setup).peak == eb.dry_run(config, setup).peak


@pytest.mark.parametrize("field", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize(("kind", "own", "other"), [("llama", "sdpa", "eager"), ("gemma2", "eager", "sdpa")])
def test_another_attention_than_the_codes_own_is_refused(field, kind, own, other):
    """transformers takes it from a file, and so does a dry run of its configuration; a `Model` has none, and a setup says it."""
    config, setup = config_of(kind, **{field: own}), eb.Setup(batch=2, sequence=48, precision="bf16")
    assert eb.budget(eb.from_config(config), setup).peak == eb.dry_run(config, setup).peak
    eager = config_of("llama", **{field: "eager"})
    assert eb.dry_run(eager, setup).peak > eb.dry_run(config_of("llama"), setup).peak
    for said in (config_of(kind).to_dict() | {field: other}, config_of(kind, **{field: other})):
        with pytest.raises(
            ValueError,
            match=rf"^config\._?attn_implementation: '{other}' of {kind}; allowed: '{own}', or none and Setup\.att",
        ):
            eb.from_config(said)


def test_a_classifier_is_refused_and_its_own_code_answers():
    """Three rows of a head, and a loss of one label a sequence, in place of the vocabulary's logits."""
    import torch

    config, setup = config_of("llama", pad_token_id=0), eb.Setup(batch=2, sequence=48, precision="bf16")
    model = eb.from_config(config.to_dict() | {"architectures": ["LlamaForCausalLM"]})
    assert model == eb.from_config(config.to_dict() | {"architectures": None})
    config.num_labels = 3
    batch = {"input_ids": ((2, 48), torch.int64), "labels": ((2,), torch.int64)}
    own = eb.dry_run(lambda: transformers.LlamaForSequenceClassification(config), setup, batch=batch)
    assert own.peak < eb.budget(model, setup).peak
    for said in (["LlamaForSequenceClassification"], ["LlamaForCausalLM", "LlamaModel"], "LlamaForCausalLM", [3]):
        with pytest.raises(
            ValueError,
            match=r"^config\.architectures: .* of llama; allowed: .* ForCausalLM or LMHeadModel, or eb\.dry_run",
        ):
            eb.from_config(LLAMA | {"architectures": said})


def test_a_file_is_read_in_python_and_in_a_shell(tmp_path, capsys):
    from everybyte.command import main

    folder = tmp_path / "Llama-3.2-1B"
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(json.dumps(hugging_face.config_of(OURS["llama-3.2-1b"]).to_diff_dict()), encoding="utf-8")
    found = eb.from_config(path)
    assert found == eb.from_config(str(path)) and found.name == "Llama-3.2-1B" and found.code == "transformers"
    assert found.replace(code="reference").family == "llama"
    assert main(["fit", str(path), "--gpu", "rtx-4090", "--sequence", "2048", "--precision", "bf16", "--json"]) == 0
    here = json.loads(capsys.readouterr().out)
    assert (
        main(["fit", "llama-3.2-1b", "--gpu", "rtx-4090", "--sequence", "2048", "--precision", "bf16", "--json"]) == 0
    )
    there = json.loads(capsys.readouterr().out)
    assert here["setup"]["batch"] == there["setup"]["batch"] == 2 and here["peak"] == there["peak"]


@pytest.mark.parametrize(("dtype", "precision"), [("bfloat16", "bf16"), ("float32", "fp32"), (None, "fp32")])
@pytest.mark.parametrize("field", ["dtype", "torch_dtype"])
def test_a_shell_takes_the_data_type_of_a_file_where_no_precision_is_said(tmp_path, capsys, field, dtype, precision):
    from everybyte.command import main

    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | SMALL | {field: dtype}), encoding="utf-8")
    for more, expected in (([], precision), (["--precision", "bf16-mixed"], "bf16-mixed")):
        assert main(["budget", str(path), "--sequence", "16", "--json", *more]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["setup"]["precision"] == expected
        assert said["peak"] == eb.budget(eb.from_config(path), eb.Setup(sequence=16, precision=expected)).peak
    path.write_text(json.dumps(LLAMA | SMALL | {field: "float16"}), encoding="utf-8")
    assert main(["budget", str(path), "--sequence", "16"]) == 2
    assert "config.dtype: 'float16', which no precision is; allowed: float32, bfloat16, or" in capsys.readouterr().err


LLAMA = {"model_type": "llama"}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"model_type": "bloom"}, r"config\.model_type: 'bloom'; allowed: gpt2, llama, .*or eb\.derive"),
        ({}, r"config\.model_type: None"),
        ({"model_type": "gemma3", "text_config": {}}, r"config\.text_config: 'gemma3' has several towers"),
        (LLAMA | {"attention_bias": True}, r"config\.attention_bias: True of llama; allowed: False"),
        (LLAMA | {"hidden_act": "gelu"}, r"config\.hidden_act: 'gelu' of llama; allowed: 'silu'"),
        (LLAMA | {"attention_dropout": 0.1}, r"config\.attention_dropout: 0\.1"),
        (LLAMA | {"layers_that_nobody_knows": 3}, r"config\.layers_that_nobody_knows: 3 is not known here to move no byte"),
        (LLAMA | {"quantization_config": {"quant_method": "fp8"}}, r"config\.quantization_config: "),
        (LLAMA | {"rope_scaling": {"rope_type": "longrope"}}, r"config\.rope_parameters: .*allowed: default, llama3"),
        (LLAMA | {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, r"config\.rope_parameters"),
        (LLAMA | {"num_hidden_layers": "many"}, r"config\.num_hidden_layers: 'many' is not a whole number"),
        (LLAMA | {"num_hidden_layers": True}, r"config\.num_hidden_layers: True is not a whole number"),
        (LLAMA | {"num_hidden_layers": -1}, r"Model\.layers: -1"),
        (LLAMA | {"tie_word_embeddings": "no"}, r"Model\.tied: 'no'"),
        (LLAMA | {"hidden_size": 4096, "num_attention_heads": 3}, r"Model\.heads: 3 does not divide"),
        ({"model_type": "qwen2", "use_sliding_window": True}, r"config\.use_sliding_window: True of qwen2.*layer_types beside it"),
        ({"model_type": "qwen2", "use_sliding_window": True, "layer_types": ["full_attention"] * 32}, r"config\.layer_types"),
        ({"model_type": "qwen2", "use_sliding_window": []}, r"config\.use_sliding_window: \[\]"),
        (LLAMA | {"sliding_window": 8}, r"config\.sliding_window: 8 is not known here"),
        ({"model_type": "gpt2", "attn_pdrop": 0.0}, r"config\.attn_pdrop: 0\.0 of gpt2; allowed: 0\.1"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"] * 26}, r"config\.layer_types: "),
        ({"model_type": "gemma2", "layer_types": "all"}, r"config\.layer_types: "),
        ({"model_type": "gemma3_text", "sliding_window_pattern": "six"}, r"config\.sliding_window_pattern: 'six'"),
        ({"model_type": "gemma3_text", "_sliding_window_pattern": 2}, r"config\._sliding_window_pattern: 2 of gemma3_text.*layer_types"),
        ({"model_type": "mistral", "sliding_window_pattern": 2}, r"config\.sliding_window_pattern: 2 of mistral.*does not read"),
        ({"model_type": "mistral", "sliding_window": 0}, r"config\.sliding_window: 0 of mistral; allowed: from 1 on, or null"),
        ({"model_type": "gemma2", "final_logit_softcapping": None}, r"config\.final_logit_softcapping: None of gemma2; allowed: a number"),
        ({"model_type": "gemma2", "attn_logit_softcapping": None}, r"config\.attn_logit_softcapping: None of gemma2; allowed: a number"),
        ({"model_type": "qwen3_moe"}, r"config\.norm_topk_prob: not said by a qwen3_moe; allowed: True, said"),
        ({"model_type": "qwen3_moe", "norm_topk_prob": None}, r"config\.norm_topk_prob: not said"),
        ({"model_type": "deepseek_v3", "n_group": 3}, r"Model\.expert_groups: 3 of 256 experts"),
        ({"model_type": "deepseek_v3", "q_lora_rank": None}, r"config\.q_lora_rank: None of deepseek_v3"),
        ([], r"config: "),
        (7, r"config: "),
        (None, r"config: "),
    ],
)  # fmt: skip
def test_what_is_refused(said, words):
    with pytest.raises(ValueError, match=words):
        eb.from_config(said)


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"model_type": NaN}', "[" * 500])
def test_a_file_that_is_none_is_refused(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"^config"):
        eb.from_config(path)
    with pytest.raises(ValueError, match=r"^config: .*nowhere\.json"):
        eb.from_config(str(tmp_path / "nowhere.json"))


def test_an_agent_names_models_alone(tmp_path):
    """No call of its opens a file: a path is no name."""
    from everybyte.command import agents

    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama"}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"model\.name: .* is unknown"):
        agents._read("budget", {"model": str(path)})
