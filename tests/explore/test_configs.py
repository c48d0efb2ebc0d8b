"""The page that answers a config.json without Python says what `from_config` and `budget` say, or refuses by name."""

import json
import random
from dataclasses import fields
from importlib import resources

import pytest

import everybyte as eb
from everybyte.answers.headroom import ROUNDING, Headroom
from everybyte.ask.setup import Setup
from everybyte.catalog import configs as read
from everybyte.explore import configs
from everybyte.theory.structure import LETTERED, Plan, structure

ASKED = """
const tried = (asked) => { try { return asked(); } catch (error) { if (!(error instanceof Refused)) throw error; return { refused: error.message, instead: error.instead }; } };
export default ({ models = [], steps = [], texts = [], fits = [] }) => ({
  models: models.map((config) => tried(() => { const model = modelOf(config); return { model, parameters: parametersOf(model) }; })),
  texts: texts.map((text) => tried(() => modelOf(parsed(text)))),
  steps: steps.map(([config, setup]) => tried(() => stepOf(modelOf(config), setup))),
  fits: fits.map(([config, setup, gpu]) => tried(() => fitting(modelOf(config), setup, GIVEN.gpus[gpu]))),
});
"""
#: What a configuration of each kind says, with sizes to be drawn: (least, most, multiple of) of what a name stands for.
SIZES = {
    "hidden": (512, 8192, 256),
    "layers": (5, 60, 1),
    "words": (1000, 200_000, 1),
    "inner": (999, 20_000, 1),
    "experts": (8, 64, 8),
}
USUAL = {
    "hidden_size": "hidden", "num_hidden_layers": "layers", "num_attention_heads": "heads", "vocab_size": "words", "intermediate_size": "inner",
    "max_position_embeddings": 65536, "num_key_value_heads": 4, "head_dim": 96, "bos_token_id": 1, "torch_dtype": "bfloat16",
}  # fmt: skip
OWN = {
    "gpt2": {"n_embd": "hidden", "n_layer": "layers", "n_head": "heads", "vocab_size": "words", "n_positions": 65536},
    "llama": {"tie_word_embeddings": True, "mlp_bias": False},
    "mistral": {"sliding_window": 4096},
    "qwen2": {"head_dim": None, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 3},
    "qwen3": {"tie_word_embeddings": True, "head_dim": 128},
    "gemma": {"hidden_act": "gelu_pytorch_tanh"},
    "gemma2": {"num_hidden_layers": 26, "sliding_window": 4096},
    "gemma3_text": {"num_hidden_layers": 26, "num_key_value_heads": 1, "sliding_window": 512, "rope_local_base_freq": 1e4},
    "phi3": {"head_dim": None, "sliding_window": 2047},
    "mixtral": {"head_dim": None, "sliding_window": None, "num_local_experts": "experts"},
    "qwen3_moe": {"num_experts": "experts", "moe_intermediate_size": "inner", "norm_topk_prob": True},
    "gpt_oss": {"num_hidden_layers": 24, "num_local_experts": "experts", "sliding_window": 128},
    "deepseek_v3": {
        "head_dim": None, "num_key_value_heads": 8, "num_attention_heads": 8, "moe_intermediate_size": "inner", "n_routed_experts": 64,
        "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "q_lora_rank": 768, "kv_lora_rank": 256, "num_hidden_layers": 27,
    },
}  # fmt: skip


@pytest.fixture
def asked(node):
    """run(**asked): what the page's program answers."""
    return lambda **given: node(configs.program() + ASKED, given)


def drawn(kind, chance):
    """A configuration of a kind with sizes of its own."""
    said = {"model_type": kind} | ({} if kind == "gpt2" else USUAL) | OWN[kind]
    sizes = {name: chance.randrange(least, most + 1, step) for name, (least, most, step) in SIZES.items()}
    sizes["heads"] = sizes["hidden"] // 64
    if any("experts" in field for field in said):  # whose rows have multiples of 16 bytes
        sizes["inner"] -= sizes["inner"] % 8
    return {
        field: sizes.get(value, value) if isinstance(value, str) else value
        for field, value in said.items()
        if value is not None
    }


def setup_of(chance):
    return {
        "batch": chance.choice((1, 2, 7)), "sequence": chance.choice((16, 512, 1001, 2048, 4096)), "precision": chance.choice(configs.PRECISIONS),
        "optimizer": chance.choice(configs.OPTIMIZERS), "checkpointing": chance.choice(configs.CHECKPOINTINGS),
    }  # fmt: skip


def test_the_courses_are_todays():
    """Where this fails, tools/configs.py writes the file anew."""
    stored = json.loads(resources.files("everybyte.explore").joinpath(configs.FILE).read_text(encoding="utf-8"))
    assert stored["signature"] == configs.signature()


def test_a_page_of_other_courses_is_not_made(monkeypatch):
    monkeypatch.setattr(configs, "signature", lambda: "another")
    with pytest.raises(ValueError, match=r"tools/configs\.py"):
        configs.page()


@pytest.mark.parametrize(
    ("kind", "sizes", "precision"),
    [("qwen3_moe", {"moe_intermediate_size": 1004}, "bf16"), ("qwen3_moe", {"moe_intermediate_size": 1002}, "bf16-mixed"),
     ("llama", {"head_dim": 97}, "bf16"), ("deepseek_v3", {"qk_rope_head_dim": 63}, "fp32")],
)  # fmt: skip
def test_what_no_code_runs_is_refused_in_the_page_as_in_python(kind, sizes, precision, asked):
    config = drawn(kind, random.Random(kind)) | sizes
    said = {"batch": 1, "sequence": 512, "precision": precision, "optimizer": "adamw", "checkpointing": "none"}
    (answer,) = asked(steps=[(config, said)])["steps"]
    with pytest.raises(ValueError) as refused:
        eb.budget(eb.from_config(config), Setup(**said))
    words = str(refused.value).partition(":")[0]
    assert answer["refused"].startswith(words) and words in ("Setup.precision", "Model.head_width")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", read.KINDS)
def test_the_page_says_the_budget_to_the_byte(kind, asked):
    chance = random.Random(kind)
    asks = []
    while len(asks) < 3:
        config, setup = drawn(kind, chance), setup_of(chance)
        if (
            configs.update_key(kind, eb.from_config(config), setup["optimizer"])
            in configs.table(configs.FILE)["updates"]
        ):
            asks.append((config, setup))
    answers = asked(steps=[*asks, *((config, setup | {"rounding": ROUNDING}) for config, setup in asks)])["steps"]
    for (config, setup), exact, rounded in zip(asks, answers[:3], answers[3:], strict=True):
        model = eb.from_config(config)
        if "refused" in exact:
            assert setup["sequence"] % 8 and model.window and "multiple of 8" in exact["refused"], exact
            continue
        said = eb.budget(model, Setup(**setup))
        assert (exact["peak"], exact["where"]) == (said.peak, said.peak_at), (config, setup)
        assert {name: size for name, _, size in exact["parts"]} == {n: said.parts[n] for n, _, _ in exact["parts"]}
        assert rounded["peak"] == eb.budget(model, Setup(**setup), rounding=ROUNDING).peak


#: Fields that a structure has as they stand, and a course as letters, or not at all.
LETTERS = {"window", "query_rank", "latent_rank", "rope_width", "value_width", "shared_experts"}


@pytest.mark.parametrize("kind", read.KINDS)
def test_steps_of_one_form_have_one_structure(kind):
    """What stands for a form differs from a drawn step of it in nothing that the theory tells steps by."""
    chance, stored, seen = random.Random(kind), {configs.form(kind, *each): each for each in configs.forms(kind)}, 0
    names = [f.name for f in fields(eb.Model) if f.name not in LETTERED]
    for _ in range(60):
        said, asked = drawn(kind, chance), setup_of(chance) | {"optimizer": "adamw"}
        heads = "n_head" if kind == "gpt2" else "num_attention_heads"
        more = (
            {"num_key_value_heads": chance.choice((1, 4, said[heads]))} if kind not in ("gpt2", "deepseek_v3") else {}
        )
        model = eb.from_config(said | more)
        setup = Setup(**asked).of(model.own)
        if not (other := stored.get(configs.form(kind, model, setup))):
            continue
        seen += 1
        (one, two), masked = (structure(*each) for each in ((model, setup), other)), 0 < model.window <= setup.sequence
        assert one[0] == two[0] and one[3:] == two[3:]
        assert [x for i, x in enumerate(one[1]) if i != 4 or masked or model.eager_alone] == [
            x for i, x in enumerate(two[1]) if i != 4 or masked or model.eager_alone
        ]  # whether heads are repeated
        apart = {name for name, a, b in zip(names, one[2][: len(names)], two[2][: len(names)], strict=True) if a != b}
        assert apart <= LETTERS and one[2][len(names) :] == two[2][len(names) :], apart
        assert Plan(model, setup).key == Plan(*other).key
    assert seen >= 10


def changed(kind, chance):
    """A configuration with one field changed, to something that may be allowed."""
    config = drawn(kind, chance)
    row = read.rows()[kind]
    field = chance.choice(
        [*row["told"], *row["computed"], *row["names"], *config, "of_nobody", "quantization_config", "text_config"]
    )
    values = [
        True,
        False,
        None,
        0,
        1,
        3,
        48,
        -1,
        2.5,
        1e30,
        "silu",
        "<img src=x onerror=alert(1)>",
        [],
        {},
        ["full_attention"] * 26,
        {"rope_type": "longrope"},
    ]
    return field, config | {field: chance.choice(values)}


def test_a_file_is_read_or_refused_as_in_python(asked):
    chance = random.Random(3)
    files = [changed(kind, chance) for kind in read.KINDS for _ in range(60)] + [
        ("", {"model_type": kind}) for kind in read.KINDS
    ]
    answers = asked(models=[config for _, config in files])["models"]
    names = [f.name for f in fields(eb.Model) if f.name not in ("name", "published", "source")]
    for (field, config), answer in zip(files, answers, strict=True):
        try:
            model = eb.from_config(config)
        except ValueError as error:
            assert answer.get("refused", "accepted").partition(":")[0] == str(error).partition(":")[0], (
                config,
                answer,
                str(error),
            )
            continue
        if "tie_word_embeddings" in answer.get("refused", ""):  # whose weights are not stored
            assert field in ("tie_word_embeddings", "") and answer["instead"].startswith("everybyte fit"), answer
            continue
        assert answer.get("parameters") == model.parameters, (field, config, answer)
        assert {name: answer["model"][name] for name in names} == {name: getattr(model, name) for name in names}
    assert sum("refused" in answer for answer in answers) > 100 < sum("refused" not in answer for answer in answers)


def test_what_has_no_course_is_refused_by_name(asked):
    llama = configs.EXAMPLE
    usual = {"batch": 2, "sequence": 2048, "precision": "bf16", "optimizer": "adamw", "checkpointing": "none"}
    cases = [
        (llama | {"num_hidden_layers": 2}, {}, "layers without the dense ones"), (llama | {"head_dim": 60}, {}, "no multiple of 8"),
        (llama, {"sequence": 1}, "a dimension of one"), (llama, {"sequence": 131073}, "Setup.sequence: 131073"), (llama, {"batch": None}, "Setup.batch: null"),
        (llama, {"batch": 1.5}, "Setup.batch: 1.5"), (OWN["gpt2"] | {"model_type": "gpt2", "n_embd": 4096, "n_head": 64, "n_layer": 12, "vocab_size": 999, "tie_word_embeddings": False}, {}, "tie_word_embeddings"),
    ]  # fmt: skip
    for answer, (*_, words) in zip(asked(steps=[(c, usual | s) for c, s, _ in cases])["steps"], cases, strict=True):
        assert words in answer["refused"] and answer["instead"], (words, answer)


def test_text_that_is_no_configuration_is_refused(asked):
    texts = [
        "{",
        "[]",
        "3",
        "null",
        '{"model_type": NaN}',
        "[" * 500,
        '{"a": "' + "b" * 2**20 + '"}',
        '{"__proto__": {"model_type": "llama"}}',
        '{"model_type": "toString"}',
        '{"model_type": ["llama"]}',
    ]
    for text, answer in zip(texts, asked(texts=texts)["texts"], strict=True):
        assert answer["refused"].startswith("config") and answer["instead"], text


def test_what_fits_is_by_the_peak(asked):
    setup = {"batch": 3, "sequence": 2048, "precision": "bf16", "optimizer": "adamw", "checkpointing": "none"}
    (found,) = asked(fits=[(configs.EXAMPLE, setup, "rtx-4090")])["fits"]
    model, usable = eb.from_config(configs.EXAMPLE), Headroom().usable(eb.gpu("rtx-4090"))
    peaks = [
        eb.budget(model, Setup(**setup | {"batch": n}), rounding=ROUNDING).peak
        for n in (3, found["largest"], found["largest"] + 1)
    ]
    assert found["free"] == usable - peaks[0] and peaks[1] <= usable < peaks[2]


def test_no_text_ends_the_pages_script():
    page = configs.page()
    assert page.count("</script>") == 1 and "<script src" not in page


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "gemma2", "final_logit_softcapping": None}, "config.final_logit_softcapping: null of gemma2; allowed: a number"),
        ({"model_type": "qwen3_moe"}, "config.norm_topk_prob: not said by a qwen3_moe; allowed: true, said"),
        ({"model_type": "mistral", "sliding_window": 0}, "config.sliding_window: 0 of mistral; allowed: from 1 on"),
        ({"model_type": "mistral", "sliding_window_pattern": 2}, "config.sliding_window_pattern: 2 of mistral, which its code does not read"),
        ({"model_type": "gemma3_text", "_sliding_window_pattern": 2}, "config._sliding_window_pattern: 2 of gemma3_text"),
    ],
)  # fmt: skip
def test_what_transformers_takes_otherwise_is_refused_in_the_page_too(asked, config, words):
    (found,) = asked(models=[config])["models"]
    assert found["refused"].startswith(words)
    with pytest.raises(ValueError, match=words.partition(":")[0].replace(".", r"\.")):
        eb.from_config(config)


def test_heads_wider_than_the_model_are_a_size_in_the_page_too(asked):
    wide = [{"model_type": kind, "head_dim": 96, "pad_token_id": 0} for kind in ("mixtral", "phi3")]
    for config, found in zip(wide, asked(models=wide)["models"], strict=True):
        assert found["parameters"] == eb.from_config(config).parameters
