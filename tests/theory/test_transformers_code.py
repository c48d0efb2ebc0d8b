"""Steps of Hugging Face's decoders: their code in the reference, on the tape, beside transformers' own in a dry run."""

from contextlib import suppress
from random import Random

import families
import pytest
from agreeing import to_the_byte
from small_decoders import TRAINED, small

import everybyte as eb
from everybyte.catalog.decoders import decoder
from everybyte.theory.budget import not_derived

pytest.importorskip("transformers")


def drawn(seed):
    """A small model, and a setup of what is derived for it; None where they do not go together."""
    draw = Random(f"transformers {seed}")
    model = small(draw.choice(TRAINED), seed).replace(code="transformers")
    fields = {
        "batch": draw.choice([1, 2, 3]), "sequence": draw.choice([1, 2, 8, 17, 29, 32, 48, 64]),
        "precision": draw.choice(["fp32", "bf16", "bf16", "bf16-mixed", "fp16-mixed", "bf16-master"]),
        "checkpointing": draw.choice(["none", "full"]), "accumulation": draw.choice([1, 1, 2, 5]),
        "optimizer": draw.choice(["adamw", "adamw", "sgd", "momentum", "lion", "adafactor", "muon"]),
        "optimizer_impl": draw.choice(["foreach", "loop", "fused"]), "attention": draw.choice(["flash", "flash", "eager"]),
        "dropout": draw.choice([0.0, 0.0, 0.1]),
    }  # fmt: skip
    if model.window and draw.random() < 0.7:
        model = model.replace(window=draw.choice([1, 16, 17, 29]))
    if model.softcap or model.sinks:
        fields["attention"] = "eager"
    if draw.random() < 0.3:
        lora = eb.Lora(rank=draw.choice([1, 4]), dtype=draw.choice(["fp32", "bf16"]), dropout=draw.choice([0.0, 0.1]))
        fields |= {"adapters": lora, "quantization": draw.choice(["none", "nf4"]), "optimizer": "adamw"}
    if draw.random() < 0.6:
        fields |= {"gpus": draw.choice([2, 3, 8]), "sharding": draw.choice(["none", "zero1", "zero2", "zero3"])}
        fields |= {"sharding_units": draw.choice(["block", "block", "model"]), "no_sync": draw.random() < 0.3}
        fields |= {"buckets": draw.choice(["copies", "views"]), "replicas": draw.choice([1, 1, 2])}
    if fields.get("sharding") in ("zero2", "zero3") and draw.random() < 0.3:
        fields |= {"offload": "cpu"}
    for name in ("quantization", "no_sync", "buckets", "replicas", "sharding_units", "optimizer_impl", "offload"):
        with suppress(ValueError):
            setup = eb.Setup(**fields)
            return None if not_derived(model, setup) else (model, setup)
        fields.pop(name, None)  # what keeps the rest from going together
    return None


@pytest.mark.sampled(12)
@pytest.mark.parametrize("seed", [728, *range(120)])  # 728: GPT-2's bias is cast last
def test_random_steps_agree_to_the_byte(seed):
    found = drawn(seed)
    if found is None:
        pytest.skip("not derived")
    to_the_byte(*found)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("cell", families.CELLS, ids=lambda cell: " ".join(map(str, cell)))
def test_cells_of_the_table_of_families_are_exact_or_refused_by_name(cell):
    """Both witnesses refuse, and only what transformers has not."""
    apart, refused = families.cell(*cell)
    if cell[0] in ("Gemma 2", "gpt-oss") and "flash" in cell:
        assert len(refused) == 2 and all(
            why.startswith("Setup.attention: 'flash' is not what") for why in refused.values()
        )
    else:
        assert apart == 0 and not refused


@pytest.mark.sampled(6)
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize("precision", ["bf16", "bf16-mixed", "fp32"])
@pytest.mark.parametrize("kind", TRAINED)
def test_every_family_agrees(kind, precision, gpus, checkpointing):
    model = small(kind, 7).replace(code="transformers")
    model = model.replace(window=min(model.window, 16))
    attention = "eager" if model.softcap or model.sinks else "flash"
    shared = {"gpus": gpus, "sharding": "zero3" if gpus > 1 else "none"}
    setup = eb.Setup(batch=2, sequence=24, precision=precision, checkpointing=checkpointing, attention=attention)
    to_the_byte(model, setup.replace(**shared))


@pytest.mark.parametrize("kind, attention, checkpointing", [("gemma2", "eager", "none"), ("gemma3", "flash", "full")])
def test_layers_of_two_kinds_in_a_row_that_is_long(kind, attention, checkpointing):
    """Of periods in the middle one stands for many; what is left over comes last; the timeline numbers blocks as the model does."""
    model = small(kind, 3).replace(code="transformers", window=16, full_every=3, layers=23)
    setup = eb.Setup(batch=1, sequence=24, precision="bf16", attention=attention, checkpointing=checkpointing)
    to_the_byte(model, setup)
    to_the_byte(model, setup.replace(gpus=2, sharding="zero3"))
    owners = [owner.split(".")[1] for *_, owner in eb.budget(model, setup).operations if owner.startswith("blocks.")]
    assert list(dict.fromkeys(owners)) == [str(i) for i in range(23)]


def test_what_is_gathered_before_backward_enters_the_last_block_is_that_block_s():
    """Nobody's turn has begun there; in a row of blocks of several kinds the path of the module has to be known all the same."""
    setup = eb.Setup(batch=2, sequence=8, precision="bf16", sharding="zero3", gpus=8)
    mixed = small("gemma3", 4).replace(code="transformers", full_every=3)
    for model in (mixed, eb.model("gpt2", code="reference").replace(layers=7)):
        operations = eb.budget(model, setup).operations
        gathered = [owner for name, phase, owner in operations if (name, phase) == ("block gathered", "backward")]
        assert gathered[0] == f"blocks.{model.layers - 1}"


def test_attention_that_transformers_has_not_is_refused():
    with pytest.raises(
        ValueError, match="^Setup.attention: 'flash' is not what transformers' gemma-2-2b has; allowed: 'eager'$"
    ):
        eb.budget(eb.model("gemma-2-2b"), eb.Setup(sequence=64, attention="flash"))


@pytest.mark.parametrize("changes", [{"kv_heads": 2}, {"head_width": 8}], ids=str)
@pytest.mark.parametrize("kind", ["gpt2", "opt", "gpt_neox"])
def test_heads_that_transformers_code_has_not_are_refused(kind, changes):
    """GPT-2's kin has no grouped heads, and heads that divide the width."""
    whole = (
        eb.model("pythia-14m")
        if kind == "gpt_neox"
        else small(kind, 1).replace(width=64, heads=4, kv_heads=4, head_width=16)
    )
    for answer in (
        lambda model: eb.budget(model, eb.Setup(batch=1, sequence=8)),
        lambda model: eb.serve(model, "80 GiB", 8),
    ):
        answer(whole)
        with pytest.raises(ValueError, match=f"^Model.{next(iter(changes))}: .* of no decoder .* as in {kind}: "):
            answer(whole.replace(code="transformers", **changes))


def test_kinds_of_blocks_that_are_too_many_are_refused():
    model = eb.model("qwen3-8b").replace(layers=200, window=16, full_every=100)
    with pytest.raises(
        ValueError, match="^Model.full_every: 100 blocks of qwen3-8b .*allowed: at most 64; eb.dry_run takes it"
    ):
        eb.budget(model, eb.Setup(batch=1, sequence=64))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("gpus", [1, 3])
@pytest.mark.parametrize("name, impl", [("adamw", "loop"), ("lion", "loop"), ("muon", "loop"), ("adafactor", "loop")])
@pytest.mark.parametrize("kind", TRAINED)
def test_an_optimizer_goes_through_the_tensors_as_transformers_makes_them(kind, name, impl, gpus):
    """Without activations to hide it: two tokens. What an iteration leaves to the next depends on which tensors are neighbors."""
    if gpus > 1 and name in ("muon", "adafactor"):
        pytest.skip("matrices are not divided")
    setup = eb.Setup(batch=1, sequence=2, optimizer=name, optimizer_impl=impl, gpus=gpus)
    for seed in range(2):
        to_the_byte(
            small(kind, seed).replace(code="transformers"), setup.replace(sharding="zero3" if gpus > 1 else "none")
        )


def test_published_dimensions():
    """A Llama in bf16 as transformers computes it takes more than the book's own: norms and rotation in small operations, fp32 logits."""
    llama, setup = eb.model("llama-3.2-1b", code="reference"), eb.Setup(batch=4, sequence=1024, precision="bf16")
    to_the_byte(llama.replace(code="transformers"), setup)
    ours, theirs = eb.budget(llama, setup).peak, eb.budget(llama.replace(code="transformers"), setup).peak
    assert theirs > 1.25 * ours


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"loss": "chunked"}, "Setup.loss: 'chunked' with llama-3.2-1b"),
        ({"checkpointing": "selective"}, "Setup.checkpointing: 'selective' with llama-3.2-1b"),
        ({"gpus": 2, "mesh": eb.Mesh(tensor=2)}, "Setup.mesh: .* with llama-3.2-1b"),
    ],
    ids=str,
)
def test_what_is_not_derived_is_refused_by_name(changes, said):
    with pytest.raises(ValueError, match=f"{said}.*; the book's code takes it"):
        eb.budget(eb.model("llama-3.2-1b"), eb.Setup(precision="bf16", **changes))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-master"])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "opt"])
def test_formulas_of_the_states_hold_and_those_of_the_loss_say_whose_they_are(kind, precision):
    model, setup = small(kind, 2).replace(code="transformers"), eb.Setup(precision=precision, batch=1, sequence=8)
    counted = eb.dry_run(model, setup).parts_at("after_step")
    for name, part in (("weights", "parameters"), ("gradients", "gradients"), ("optimizer", "optimizer")):
        assert eb.formula(name).at(model, setup) == counted[part]
    for name in ("buffers", "loss.value", "loss.shares", "loss.kept", "loss.logits"):
        with pytest.raises(
            ValueError, match=f"{name}: Model.code: 'transformers' .*; allowed: 'reference'; eb.budget answers"
        ):
            eb.formula(name).at(model, setup)


@pytest.mark.parametrize("sequence", [31, 32, 33, 48])
def test_a_window_that_is_reached_costs_a_mask_in_each_layer(sequence):
    mistral = small("mistral", 1).replace(window=32, code="transformers")
    to_the_byte(mistral, eb.Setup(batch=2, sequence=sequence, precision="bf16"))


def test_a_code_that_nobody_has_is_refused():
    with pytest.raises(ValueError, match="Model.code: 'torch' is unknown; allowed: reference, transformers"):
        eb.model("gpt2").replace(code="torch")
    with pytest.raises(ValueError, match="model.code: 'torch' is unknown; allowed: reference, transformers"):
        eb.model("gpt2", code="torch")


def test_names_of_the_catalog_are_the_models_that_people_run():
    for name in ("llama-3.2-1b", "opt-125m", "pythia-14m", "gemma-3-1b", "gpt-oss-20b"):
        assert eb.model(name).code == "transformers"
    assert eb.model("gpt2").code == "reference"
    assert eb.model("llama-3.2-1b", code="reference") == eb.model("llama-3.2-1b").replace(
        code="reference", published=eb.model("llama-3.2-1b").published
    )


def test_a_decoder_is_found_without_counting_through_its_ranges():
    """A tape's sizes are no plain ints, for which `in` asks every number of a range: 3 s of each first budget."""
    asked = []

    class Letter(int):
        __hash__ = int.__hash__

        def __eq__(self, other):
            asked.append(other)
            return int(self) == other

    class Lettered:
        def __getattr__(self, name):
            value = getattr(model, name)
            return Letter(value) if type(value) is int else value

    model = eb.model("llama-3.2-1b")
    assert decoder(Lettered()) == decoder(model) == "llama" and len(asked) < 1_000


@pytest.mark.parametrize("kind", TRAINED)
def test_what_is_traced_of_one_model_holds_for_every_other_of_its_structure(kind):
    """A size that is a number on the tape, and no letter, is the first model's for all that follow."""
    model = small(kind, 7).replace(code="transformers", layers=8, window=16 * bool(small(kind, 7).window))
    attention = "eager" if model.softcap or model.sinks else "flash"
    setup = eb.Setup(batch=2, sequence=24, precision="bf16", attention=attention)
    doubled = ("width", "head_width", "embedding_width", "ffn_width", "vocabulary", "experts", "expert_width")
    doubled += ("query_rank", "latent_rank", "value_width", "rope_width")
    sizes = {field: 2 * getattr(model, field) for field in doubled if getattr(model, field)}
    for one in (model, model.replace(**sizes)):
        to_the_byte(one, setup)


@pytest.mark.parametrize("optimizer", ["adamwfp8", "torchao-adamw8bit", "adamw4bit"])
@pytest.mark.parametrize("kind", ["gpt_oss", "llama4_text", "mixtral"])
def test_compiled_optimizers_see_the_experts_matrices_as_they_are_stored(kind, optimizer):
    """Llama 4's and gpt-oss's have a row for each input: whether rows make up a block of 256 decides what the compiled step makes."""
    pytest.importorskip("torchao")
    model = small(kind, 5).replace(code="transformers", width=96, embedding_width=96, experts=16, expert_width=16)
    setup = eb.Setup(batch=1, sequence=16, optimizer=optimizer, attention="eager" if model.eager_alone else "flash")
    to_the_byte(model, setup)


@pytest.mark.parametrize(
    ("sequence", "precision", "after_forward"),
    [(17, "fp32", 523840), (17, "bf16", 292256), (20, "fp32", 574120), (20, "bf16", 322568), (24, "fp32", 641160)],
)
def test_a_masks_rows_are_padded_before_heads_share_it(sequence, precision, after_forward):
    """`after_forward` is of a rehearsal of this model on an A100, with PyTorch 2.13: two blocks of a window."""
    model = eb.model("mistral-7b").replace(
        name="windowed", published=None, layers=2, width=64, heads=4, kv_heads=2, head_width=16, ffn_width=56, vocabulary=100, window=12
    )  # fmt: skip
    setup = eb.Setup(batch=2, sequence=sequence, precision=precision, optimizer="sgd")
    assert {w(model, setup).phases["after_forward"] for w in (eb.budget, eb.dry_run)} == {after_forward}


def test_heads_that_no_kernel_takes_with_a_mask_are_refused():
    model = eb.model("mistral-7b").replace(
        name="twenty", published=None, layers=2, width=64, heads=4, kv_heads=2, head_width=20, vocabulary=100, window=12
    )
    setup = eb.Setup(batch=2, sequence=16, precision="fp32")
    assert eb.budget(model, setup).peak
    with pytest.raises(ValueError, match=r"Setup\.attention: 'flash' takes no heads of width 20 in bf16 with a mask"):
        eb.budget(model, setup.replace(precision="bf16"))
