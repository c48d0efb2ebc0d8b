"""Where derivations are kept: what is told apart there, and what is not kept."""

import pytest

import everybyte as eb
from everybyte.deriving import cache

transformers = pytest.importorskip("transformers")


MIXTRAL = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 100, "num_local_experts": 4, "max_position_embeddings": 64,
}  # fmt: skip


def test_what_is_kept_tells_apart_what_a_configuration_does_not_print(tmp_path, monkeypatch):
    monkeypatch.setenv("EVERYBYTE_CACHE", str(tmp_path))
    found = []
    for experts in ("grouped_mm", "batched_mm"):
        config = transformers.MixtralConfig(**MIXTRAL, experts_implementation=experts)
        setup = eb.Setup(batch=2, sequence=16)
        found.append(eb.derive(config, setup).at(2, 16).peak)
        assert found[-1] == eb.dry_run(config, setup).peak
    assert found == [4_696_900, 18_111_816] and len(list(tmp_path.iterdir())) == 2


def test_code_that_has_no_name_is_not_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("EVERYBYTE_CACHE", str(tmp_path))

    class Mine(transformers.LlamaConfig):
        pass

    class Odd:
        pass

    odd = transformers.LlamaConfig()
    odd.something = Odd()
    assert cache.place(transformers.LlamaConfig(), eb.Setup(), None)
    assert cache.place(Mine(), eb.Setup(), None) is cache.place(odd, eb.Setup(), None) is None
