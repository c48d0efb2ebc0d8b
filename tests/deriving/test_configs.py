"""Hugging Face configurations of several families, small: the whole list at real dimensions is in tools/derivations.py."""

import pytest

import everybyte as eb

transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.masking_utils")

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 331}
MORE = {"num_key_value_heads": 2, "max_position_embeddings": 128}
CONFIGS = {
    "mistral": lambda: transformers.MistralConfig(**SIZES, **MORE, num_hidden_layers=1, sliding_window=80),
    "mixtral": lambda: transformers.MixtralConfig(**SIZES, **MORE, num_hidden_layers=5, num_local_experts=4),
    "mamba2": lambda: transformers.Mamba2Config(
        hidden_size=64, num_heads=8, head_dim=16, state_size=16, n_groups=2, num_hidden_layers=1, vocab_size=331
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_is_the_dry_run(name, monkeypatch):
    monkeypatch.setenv("EVERYBYTE_CACHE", "off")
    config, setup = CONFIGS[name](), eb.Setup(precision="bf16")
    derivation = eb.derive(config, setup)
    longest = derivation.range("sequence")[1]
    for b, s in [(1, 1), (3, 79), (2, longest - 1)]:
        counted = eb.dry_run(config, setup.replace(batch=b, sequence=s))
        derived = derivation.at(b, s)
        assert (derived.peak, derived.peak_at) == (counted.peak, counted.peak_at), (b, s)
        assert (derived.parts, derived.phases) == (counted.parts, counted.phases), (b, s)
        assert eb.compare(derived, counted).agree
