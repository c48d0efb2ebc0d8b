"""The catalog's models: each equals its published count; what is no model is refused."""

import dataclasses
import subprocess
import sys

import hypothesis
import pytest
from hypothesis import strategies as st

import everybyte as eb

#: Published counts, gathered apart from the catalog.
COUNTS = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt2-nobias": 124_337_664,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "tinyllama-1.1b": 1_100_048_384,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "mixtral-8x7b": 46_702_792_704,
    "pythia-1b": 1_011_781_632,
    "opt-1.3b": 1_315_758_080,
    "bert-base": 109_482_240,
}

FAMILIES = {
    "gpt2": 5,
    "llama-2": 3,
    "llama-3-": 2,
    "llama-3.1": 3,
    "llama-3.2": 2,
    "llama-4": 1,
    "tinyllama": 1,
    "mistral": 1,
    "mixtral": 2,
    "qwen2.5": 7,
    "qwen3": 4,
    "gemma-2b": 1,
    "gemma-2-2b": 1,
    "gemma-3": 1,
    "phi-3": 1,
    "pythia": 10,
    "opt": 9,
    "bert": 2,
    "deepseek-v3": 1,
    "kimi-k2": 1,
    "glm-4.5": 2,
    "gpt-oss": 2,
}

SMALL = {"layers": 2, "width": 64, "heads": 4, "vocabulary": 100}
MIXTURE = SMALL | {"experts": 4, "experts_per_token": 2, "expert_width": 32}
LATENT = SMALL | {"query_rank": 8, "latent_rank": 8, "rope_width": 4, "value_width": 16}


@pytest.mark.parametrize("name", eb.models())
def test_count_is_the_published_one(name):
    model = eb.model(name)
    assert model.parameters == model.published


@pytest.mark.parametrize("name", COUNTS)
def test_published_counts_are_those_gathered_apart(name):
    assert eb.model(name).published == COUNTS[name]


def test_every_family_is_whole():
    found = {prefix: sum(name.startswith(prefix) for name in eb.models()) for prefix in FAMILIES}
    assert found == FAMILIES
    assert len(eb.models()) == sum(FAMILIES.values())


@pytest.mark.parametrize("model", eb.models().values(), ids=str)
def test_entry_states_its_source_and_positions(model):
    assert model.source
    assert model.positions >= 512


def test_published_active_counts():
    # Rounded as the model cards and the Mixtral paper state them.
    active = {name: eb.formula("parameters.active").at(eb.model(name)) for name in ("mixtral-8x7b", "mixtral-8x22b")}
    assert [round(n / 1e9) for n in active.values()] == [13, 39]
    assert round(eb.formula("parameters.active").at(eb.model("deepseek-v3")) / 1e9) in (37, 38)


@pytest.mark.parametrize(
    ("wrong", "near"), [("gpt-2", "gpt2"), ("llama2-7b", "llama-2-7b"), ("Mixtral-8x7B", "mixtral-8x7b"), (7, "gpt2")]
)
def test_unknown_name_lists_near_matches(wrong, near):
    with pytest.raises(ValueError, match=near) as error:
        eb.model(wrong)
    assert repr(wrong) in str(error.value)


def test_which_layers_have_the_window():
    """As the configurations of Hugging Face say it, `layer_types`: gemma-2 and gpt-oss begin with a window, gemma-3 has five and one."""
    layers = {
        name: [eb.model(name).windowed(i) for i in range(7)]
        for name in ("gemma-2-2b", "gemma-3-1b", "llama-4-scout", "mistral-7b")
    }
    assert layers["gemma-2-2b"] == [True, False] * 3 + [True]
    assert layers["gemma-3-1b"] == [True] * 5 + [False, True]
    assert layers["llama-4-scout"] == [True] * 3 + [False] + [True] * 3
    assert all(layers["mistral-7b"]) and not eb.model("qwen2.5-7b", code="reference").windowed_layers
    plain = eb.model("llama-4-scout", code="reference").replace(window=0)
    assert plain.windowed_layers == plain.full_every == plain.chunked == 0
    for field, value in (("full_every", 2), ("chunked", True)):
        with pytest.raises(ValueError, match=f"Model.{field}: {value} needs window; allowed where window is 0"):
            eb.Model(**SMALL, **{field: value})
    with pytest.raises(ValueError, match="Model.full_every: 1 leaves no layer its window; allowed: 0, 2 or more"):
        eb.Model(**SMALL, window=8, full_every=1)


def test_reading_the_catalog_loads_no_library():
    code = (
        "import sys, everybyte as eb\n"
        "assert eb.models.cache_info().currsize == 0, 'read at import'\n"
        "assert eb.models() and eb.gpus()\n"
        "print(sorted({'sympy', 'torch', 'numpy', 'matplotlib', 'ipywidgets'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "[]", run.stderr


def test_catalog_is_read_once():
    assert eb.models() is eb.models()


@pytest.mark.parametrize("field", SMALL)
@pytest.mark.parametrize("value", [0, -1, 1.0, "12", True, None, 2**40])
def test_required_dimension_must_be_a_plausible_count(field, value):
    with pytest.raises(ValueError, match=rf"Model\.{field}.*{value!r}.*from 1 to 16,777,216"):
        eb.Model(**SMALL | {field: value})


OPTIONAL_COUNTS = [f.name for f in dataclasses.fields(eb.Model) if f.type in (int, int | None) and f.name not in SMALL]
FLAGS = [f.name for f in dataclasses.fields(eb.Model) if f.type in (bool, bool | None)]


@pytest.mark.parametrize("field", OPTIONAL_COUNTS)
@pytest.mark.parametrize("value", [-1, 0.5, "1", True, 2**61])
def test_every_other_count_is_checked(field, value):
    with pytest.raises(ValueError, match=rf"Model\.{field}: {value!r} is not a whole number from [01] to "):
        eb.Model(**SMALL, **{field: value})


@pytest.mark.parametrize("field", ["kv_heads", "head_width", "ffn_width", "embedding_width", "published"])
def test_what_exists_is_not_empty(field):
    with pytest.raises(ValueError, match=rf"Model\.{field}: 0 .* from 1"):
        eb.Model(**SMALL, **{field: 0})


@pytest.mark.parametrize("field", FLAGS)
@pytest.mark.parametrize("value", [1, 0, "yes"])
def test_every_flag_is_checked(field, value):
    with pytest.raises(ValueError, match=rf"Model\.{field}: {value!r} is not True or False"):
        eb.Model(**SMALL, **{field: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, r"Model\.heads: 5 does not divide the width 64.*4"),
        ({"kv_heads": 3}, r"Model\.kv_heads: 3 does not divide the 4 heads.*2"),
        ({"kv_heads": 8}, r"Model\.kv_heads: 8 does not divide the 4 heads"),
        ({"norm": "rmsnorms"}, r"Model\.norm: 'rmsnorms'.*'rmsnorm'"),
        ({"norm": "rmsnorm", "norm_bias": True}, r"Model\.norm_bias: True .*rmsnorm.*False"),
        ({"norm_offset": True}, r"Model\.norm_offset: True .*layernorm.*False"),
        ({"activation": "gelu_fast"}, r"Model\.activation: 'gelu_fast'.*'gelu'"),
        ({"activation": 1}, r"Model\.activation: 1 is not text"),
        ({"rotary_percent": 101}, r"Model\.rotary_percent: 101 .* from 0 to 100"),
        ({"name": 3}, r"Model\.name: 3 is not text"),
        ({"learned_positions": 10}, r"Model\.positions: 0 .*10.*1 to 10"),
        ({"positions": 20, "learned_positions": 10}, r"Model\.positions: 20 .*1 to 10"),
        ({"experts": 4}, r"Model\.experts_per_token: 0 .* from 1 to 4"),
        ({"experts": 4, "experts_per_token": 5, "expert_width": 8}, r"Model\.experts_per_token: 5 .* from 1 to 4"),
        ({"experts": 4, "experts_per_token": 2}, r"Model\.expert_width: 0 "),
        (MIXTURE | {"dense_layers": 3}, r"Model\.dense_layers: 3 .* from 0 to 2"),
        ({"experts_per_token": 2}, r"Model\.experts_per_token: 2 needs experts"),
        ({"shared_experts": 1}, r"Model\.shared_experts: 1 needs experts"),
        ({"router_bias": True}, r"Model\.router_bias: True needs experts.*False"),
        ({"latent_rank": 8}, r"Model\.query_rank: 0 "),
        (LATENT | {"rope_width": 17}, r"Model\.rope_width: 17 .* from 1 to 16"),
        ({"query_rank": 8}, r"Model\.query_rank: 8 needs latent_rank"),
    ],
)
def test_fields_must_fit_together(changes, message):
    with pytest.raises(ValueError, match=message):
        eb.Model(**SMALL | changes)


def test_heads_need_not_divide_the_width_where_a_head_has_a_width_of_its_own():
    assert eb.Model(**SMALL | {"heads": 5, "head_width": 16}).head_width == 16


def test_defaults_are_gpt2s():
    model = eb.Model(layers=12, width=768, heads=12, vocabulary=50257, positions=1024)
    assert model.parameters == COUNTS["gpt2"]
    assert (model.kv_heads, model.head_width, model.ffn_width) == (12, 64, 3072)
    assert not eb.Model(**SMALL, norm="rmsnorm").norm_bias


def test_a_copy_follows_its_changes():
    wide = eb.model("gpt2").replace(width=1536)
    assert (wide.head_width, wide.ffn_width, wide.embedding_width, wide.published) == (128, 6144, 1536, None)
    assert eb.model("llama-3-8b", code="reference").replace(width=2048).ffn_width == 14336
    assert eb.model("gpt2").replace(layers=24, width=1024, heads=16).parameters == COUNTS["gpt2-medium"]
    with pytest.raises(ValueError, match=r"Model\.heads"):
        eb.model("gpt2").replace(heads=7)


def test_a_copy_keeps_what_only_happens_to_be_the_default():
    model = eb.Model(width=8, heads=3, head_width=2, layers=1, vocabulary=8)
    assert model.replace(layers=3).head_width == 2
    assert model.replace(width=16).head_width == 2  # which no default would be
    assert eb.model("gpt2").replace(layers=3).ffn_width == 3072
    assert eb.model("llama-2-7b", code="reference").replace(gated=False).activation == "gelu"
    assert eb.model("gemma-2b", code="reference").replace(gated=False).activation == "gelu_tanh"


#: Field -> a value that each family's reference does not build.
STRANGE = {
    "gpt": {
        "norm": "rmsnorm", "gated": True, "causal": False, "parallel_residual": True, "post_norm": True, "softcap": True,
        "sinks": True, "token_types": 2, "pooler": True, "embedding_norm": True, "block_norms": 3, "final_norm": False,
        "qk_norm": True, "scaled_embedding": True, "activation": "silu", "learned_positions": 0, "kv_heads": 4,
        "head_width": 32, "embedding_width": 64,
    },
    "llama": {
        "norm": "layernorm", "gated": False, "causal": False, "parallel_residual": True, "post_norm": True, "softcap": True,
        "sinks": True, "token_types": 2, "pooler": True, "embedding_norm": True, "block_norms": 3, "final_norm": False,
        "rotary_percent": 1, "activation": "silu_clamped", "learned_positions": 4096, "out_bias": True,
        "ffn_bias": True, "head_width": 33, "embedding_width": 64,
    },
}  # fmt: skip


@pytest.mark.parametrize(("family", "field"), [(family, f) for family, fields in STRANGE.items() for f in fields])
def test_what_no_reference_builds_is_named(family, field):
    name, value = {"gpt": "gpt2", "llama": "llama-2-7b"}[family], STRANGE[family][field]
    model = eb.model(name, code="reference").replace(**{field: value})
    said = model.unlike_reference(family)
    assert model.family is None and model.unlike_reference()
    assert said.startswith(f"Model.{field}: {value!r} of {name} is not a ") and "; allowed: " in said


def test_the_references_families():
    families = {name: m.family for name, m in eb.models("reference").items()}
    prefixes = {"gpt2": "gpt", "opt": "gpt", "llama": "llama", "tiny": "llama", "mi": "llama", "qwen": "llama"}
    expected = {n: next((f for p, f in prefixes.items() if n.startswith(p)), None) for n in families}
    assert families == expected | {"opt-350m": None, "llama-4-scout": None, "gemma-2b": "llama", "phi-3-mini": "llama"}
    mixtral = eb.model("mixtral-8x7b", code="reference")
    for changes in ({"fused": True}, {"shared_experts": 1}, {"dense_layers": 1}, {"router_bias": True}):
        assert f"Model.{next(iter(changes))}: " in mixtral.replace(**changes).unlike_reference()
    deepseek = "Model.latent_rank: 512 of deepseek-v3 is not a Llama's; allowed: 0"
    assert eb.model("deepseek-v3", "reference").unlike_reference() == deepseek
    with pytest.raises(ValueError, match=r"Model\.family: 'bert' is unknown; .*allowed: gpt, llama"):
        mixtral.unlike_reference("bert")


def test_a_model_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        eb.model("gpt2").layers = 1


@st.composite
def _dense(draw):
    kv_heads, share = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    positions = draw(st.integers(0, 512))
    norm = draw(st.sampled_from(["layernorm", "rmsnorm"]))
    flag = st.booleans()
    return eb.Model(
        layers=draw(st.integers(1, 8)),
        width=draw(st.integers(1, 256)),
        heads=kv_heads * share,
        kv_heads=kv_heads,
        head_width=draw(st.integers(1, 64)),
        vocabulary=draw(st.integers(1, 1000)),
        positions=positions,
        learned_positions=positions and draw(st.sampled_from([0, positions, positions + 2])),
        ffn_width=draw(st.integers(1, 512)),
        block_norms=draw(st.integers(1, 4)),
        norm=norm,
        norm_bias=norm == "layernorm" and draw(flag),
        token_types=draw(st.integers(0, 3)),
        **{
            f: draw(flag) for f in ("gated", "tied", "qkv_bias", "out_bias", "ffn_bias", "final_norm", "embedding_norm")
        },
        **{f: draw(flag) for f in ("qk_norm", "sinks", "pooler")},
    )


def _dense_count(m):
    """The sizes of a dense model's tensors, added up without the formula."""
    norm = m.width * (1 + m.norm_bias)
    head_norm = m.head_width * (1 + m.norm_bias)
    queries, keys = m.heads * m.head_width, m.kv_heads * m.head_width
    block = [m.width * queries, m.width * keys, m.width * keys, queries * m.width]
    block += [queries, keys, keys] if m.qkv_bias else []
    block += [m.width] if m.out_bias else []
    block += [m.width * m.ffn_width] * (3 if m.gated else 2)
    block += ([m.ffn_width] * (2 if m.gated else 1) + [m.width]) if m.ffn_bias else []
    block += [norm] * m.block_norms + [head_norm] * (2 * m.qk_norm) + [m.heads] * m.sinks
    ends = [m.vocabulary * m.width] * (1 if m.tied else 2) + [m.learned_positions * m.width, m.token_types * m.width]
    ends += [norm] * (m.final_norm + m.embedding_norm) + [m.width * m.width, m.width] * m.pooler
    return m.layers * sum(block) + sum(ends)


@hypothesis.given(_dense())
@hypothesis.settings(deadline=None)
def test_count_of_any_dense_model(model):
    assert isinstance(model.parameters, int)
    assert model.parameters == _dense_count(model)


GROWING = {
    "dense": (SMALL | {"positions": 16, "kv_heads": 2, "head_width": 16, "ffn_width": 32},
              ["layers", "width", "vocabulary", "learned_positions", "head_width", "ffn_width", "block_norms", "token_types"]),
    "mixture": (MIXTURE | {"head_width": 16, "dense_layers": 1},
                ["layers", "width", "experts", "expert_width", "shared_experts", "ffn_width", "vocabulary"]),
    "latent": (LATENT | {"head_width": 16},
               ["layers", "width", "query_rank", "latent_rank", "value_width", "head_width", "heads", "vocabulary"]),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "field"), [(k, f) for k, (_, fields) in GROWING.items() for f in fields])
@hypothesis.given(more=st.integers(1, 1000), scale=st.integers(1, 8))
@hypothesis.settings(deadline=None, max_examples=20)
def test_count_grows_with_each_dimension(kind, field, more, scale):
    fields = GROWING[kind][0] | {"layers": 2 * scale, "width": 64 * scale}
    model = eb.Model(**fields)
    larger = eb.Model(**fields | {field: getattr(model, field) + more})
    assert larger.parameters > model.parameters


@pytest.mark.parametrize(
    "field", ["gated", "qkv_bias", "out_bias", "ffn_bias", "final_norm", "qk_norm", "sinks", "pooler"]
)
def test_count_grows_with_each_part(field):
    without = eb.Model(**SMALL, **{field: False})
    assert without.replace(**{field: True}).parameters > without.parameters


def test_tying_saves_one_table():
    model = eb.Model(**SMALL)
    assert model.replace(tied=False).parameters - model.parameters == 100 * 64


def test_a_narrow_table_has_a_narrow_head():
    # OPT-350m's kind: W by H each way, and tables of V rows of width W at both ends once untied.
    model = eb.Model(**SMALL, embedding_width=16)
    assert model.parameters == eb.Model(**SMALL).parameters - 100 * (64 - 16) + 2 * 64 * 16
    assert model.replace(tied=False).parameters - model.parameters == 100 * 16


def test_what_follows_from_other_fields_has_their_bounds():
    with pytest.raises(ValueError, match=r"^Model\.ffn_width: 50331648 is not a whole number from 1 to 16,777,216"):
        eb.Model(name="wide", layers=1, width=3 * 2**22, heads=1, vocabulary=10)
