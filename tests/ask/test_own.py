"""What a setup does not say is as the model has it, for every witness; what it says is honored, or refused by name."""

import json
import pickle

import pytest

import everybyte as eb
from everybyte.ask.choices import OWNED
from everybyte.command.running import main
from everybyte.dryrun import hugging_face
from everybyte.lab.measuring import check_request

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

GPT2 = {"n_layer": 2, "n_embd": 48, "n_head": 3, "vocab_size": 331, "n_positions": 64}
LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 331,
}
#: Configurations that say nothing but sizes -> what of a setup is their own.
CONFIGS = {
    "gpt2": (lambda: transformers.GPT2Config(**GPT2), {"sequence": 64, "dropout": 0.1}),
    "eager gpt2": (
        lambda: transformers.GPT2Config(**GPT2, attn_implementation="eager"),
        {"sequence": 64, "attention": "eager", "dropout": 0.1},
    ),
    "opt": (lambda: transformers.OPTConfig(**LLAMA | {"ffn_dim": 96, "word_embed_proj_dim": 64}), {"dropout": 0.1}),
    "gemma2": (lambda: transformers.Gemma2Config(**LLAMA, num_key_value_heads=2, head_dim=16), {"attention": "eager"}),
    "bert": (lambda: transformers.BertConfig(**LLAMA), {"sequence": 512, "dropout": 0.1}),
    "llama": (lambda: transformers.LlamaConfig(**LLAMA), {}),
    "bf16": (lambda: transformers.LlamaConfig(**LLAMA, dtype=torch.bfloat16), {"precision": "bf16"}),
    "fp16": (lambda: transformers.LlamaConfig(**LLAMA, dtype="float16"), {"precision": "own"}),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_dry_run_has_the_models_own_values_and_says_them(name):
    make, own = CONFIGS[name]
    trace = eb.dry_run(make(), eb.Setup(batch=1))
    assert trace.setup.taken == own
    said = eb.dry_run(make(), eb.Setup(batch=1, **{n: getattr(trace.setup, n) for n in OWNED}))
    assert (said.peak, said.phases, said.setup.taken) == (trace.peak, trace.phases, {})
    assert trace.as_dict().get("own", {}) == own and trace.setup == said.setup
    for field, value in own.items():
        assert f"{field} {value}" in repr(trace.table()) and f"{field} {value}" not in repr(said.table())


def test_what_transformers_says_is_what_the_catalog_says():
    both = [m for code in ("reference", "transformers") for m in eb.models(code).values() if m.family is None]
    wrong = {}
    for model in both:
        try:
            config = hugging_face.config_of(model)
        except ValueError:  # transformers' code has no such model
            continue
        if (theirs := {name: hugging_face.own(config)[name] for name in model.own}) != model.own:
            wrong[model.name] = theirs
    assert not wrong and len(both) > 60


@pytest.mark.parametrize("attention", ["eager", "flash", None])
@pytest.mark.parametrize("name", ["gpt2", "opt-125m"])
def test_the_formula_of_a_catalogs_model_is_the_dry_run_of_its_config(name, attention):
    model = eb.model(name, code="transformers").replace(layers=2, vocabulary=331)
    setup = eb.Setup(batch=2, sequence=64, attention=attention)
    predicted, counted = eb.budget(model, setup), eb.dry_run(hugging_face.config_of(model), setup)
    assert predicted.setup == counted.setup and predicted.setup.dropout == 0.1
    assert (predicted.peak, predicted.phases) == (counted.peak, counted.phases)
    assert eb.budget(model, setup.replace(dropout=0.0)).phases["after_forward"] < predicted.phases["after_forward"]
    assert eb.plan(model, setup, "rtx-4090").asked.peak == eb.budget(model, setup, rounding=512).peak


def test_the_books_own_models_have_what_they_had():
    gpt2, setup = eb.model("gpt2"), eb.Setup()
    assert eb.budget(gpt2, setup).setup == setup == eb.Setup(**OWNED) and hash(setup) == hash(eb.Setup(**OWNED))
    assert setup.as_dict() == eb.Setup(**OWNED).as_dict() and not setup.of(gpt2.own).taken


def test_a_derivation_and_its_fit_have_the_models_own_values(monkeypatch, tmp_path):
    monkeypatch.setenv("EVERYBYTE_CACHE", str(tmp_path))  # where fit finds what derive kept
    config, setup = CONFIGS["gpt2"][0](), eb.Setup()
    derivation = eb.derive(config, setup)
    assert derivation.at(3, 40).peak == eb.dry_run(config, setup.replace(batch=3, sequence=40)).peak
    assert "dropout 0.1" in derivation.said()[0]
    found = eb.fit(derivation, setup, "1 GiB")
    assert found.setup.dropout == 0.1 and found.value == eb.fit(config, setup, "1 GiB").value
    assert any("dropout 0.1" in line for line in found.said())
    with pytest.raises(ValueError, match=r"fit\.setup: dropout 0\.0, but .* was derived with 0\.1"):
        eb.fit(derivation, setup.replace(dropout=0.0), "1 GiB")


def test_what_is_said_stays_said_through_changes_and_what_is_not_said_stays_open():
    config, gpt2 = CONFIGS["gpt2"][0](), eb.model("gpt2")
    setup = eb.Setup(batch=1).replace(sequence=16)
    counted = eb.dry_run(config, setup).setup
    assert counted.taken == {"dropout": 0.1} and pickle.loads(pickle.dumps(counted)).taken == {"dropout": 0.1}
    assert counted.replace(batch=2).taken == {"dropout": 0.1} and counted.replace(dropout=0.2).taken == {}
    assert eb.budget(gpt2, setup).setup.dropout == 0.0 and eb.budget(gpt2, counted).setup.dropout == 0.1
    with pytest.raises(ValueError, match=r"^Setup\.dropout: 0\.0, and GPT2Config\.\w+ is 0\.1; allowed: 0\.1"):
        eb.dry_run(config, setup.replace(dropout=0.0))


def test_a_models_own_value_that_does_not_go_with_what_is_said_is_refused_as_the_models():
    half = transformers.LlamaConfig(**LLAMA, dtype=torch.float16)
    with pytest.raises(
        ValueError, match=r"^Setup\.sharding: 'zero3' with precision 'own'.*Not said, .*: precision own"
    ):
        eb.dry_run(half, eb.Setup(gpus=2, sharding="zero3"))
    other = transformers.GPT2Config(**GPT2, attn_implementation="flash_attention_2")
    with pytest.raises(
        ValueError, match=r"^Setup\.attention: 'flash_attention_2' .*; allowed: eager, flash\. Not said"
    ):
        eb.dry_run(other, eb.Setup(batch=1))
    assert eb.dry_run(other, eb.Setup(batch=1, attention="eager")).setup.attention == "eager"


def test_a_checkpoint_whose_weights_are_stored_otherwise_is_refused_by_name():
    kinds = {"gptq": {"quant_method": "gptq", "bits": 4}}
    kinds["bitsandbytes"] = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    for method, stored in kinds.items():
        config = transformers.LlamaConfig(**LLAMA, quantization_config=stored)
        with pytest.raises(
            ValueError, match=rf"^LlamaConfig\.quantization_config: weights stored by '{method}'.*; allowed: "
        ):
            eb.dry_run(config, eb.Setup(batch=1, sequence=16))
    setup = eb.Setup(batch=1, sequence=16, adapters=eb.Lora(rank=2), quantization="nf4")
    plain = eb.dry_run(transformers.LlamaConfig(**LLAMA), setup)
    assert eb.dry_run(config, setup).peak == plain.peak


def test_what_is_loaded_by_dtype_auto_is_counted_as_it_is_loaded(tmp_path):
    """Weights in 16 bits, and the rotary frequencies in fp32, which a cast would halve."""
    config = CONFIGS["bf16"][0]()
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    kinds = {"parameters": loaded.parameters(), "buffers": loaded.buffers()}
    there = {kind: sum(t.numel() * t.itemsize for t in tensors) for kind, tensors in kinds.items()}
    read = transformers.AutoConfig.from_pretrained(tmp_path)
    for setup in (eb.Setup(batch=1), eb.Setup(batch=1, gpus=2, sharding="zero1")):
        rest = eb.dry_run(read, setup).parts_at("rest")
        assert {kind: rest[kind] for kind in there} == there
    lora = eb.dry_run(read, eb.Setup(batch=1, precision="bf16", adapters=eb.Lora(rank=2, dtype="bf16"))).parts_at(
        "rest"
    )
    assert lora["buffers"] == there["buffers"]
    assert (
        eb.dry_run(read, eb.Setup(batch=1, precision="fp32")).parts_at("rest")["parameters"] == 2 * there["parameters"]
    )


def test_the_command_takes_what_config_json_says(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(transformers.GPT2Config(**GPT2).to_dict() | {"torch_dtype": "bfloat16"}))
    assert main(["dry-run", "--hf", str(path), "--batch", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["own"] == {"sequence": 64, "precision": "bf16", "dropout": 0.1}
    assert main(["dry-run", "--hf", str(path), "--batch", "1", "--dropout", "0.0"]) == 2
    assert "GPT2Config" in capsys.readouterr().err


def test_a_measured_step_is_as_long_as_the_model_has_positions_and_no_longer():
    """The book's own code is given its setup as it stands: there a longer sequence is refused."""
    tiny = eb.Model(layers=1, width=16, heads=2, vocabulary=300, positions=32)
    assert check_request(tiny, eb.Setup()).sequence == 32 == eb.budget(tiny, eb.Setup()).setup.sequence
    for setup in (eb.Setup(), eb.Setup(sequence=33)):
        with pytest.raises(ValueError, match=r"^Setup\.sequence: (1024|33) is more than the 32 positions"):
            setup.check_model(tiny)
    with pytest.raises(ValueError, match=r"^Setup\.sequence: 33 is more than the 32 positions"):
        check_request(tiny, eb.Setup(sequence=33))
