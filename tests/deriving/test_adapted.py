"""LoRA by peft, frozen weights, checkpointing imported by name, weights made of other tensors: counted, and derived."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

import everybyte as eb

VOCABULARY, WIDTH, LAYERS, RANK = 331, 64, 1, 4
SETUP = eb.Setup(precision="bf16-mixed")
TOKENS = {"tokens": (("B", "S"), torch.int64)}


def at(batch, b, s):
    return {name: (tuple({"B": b, "S": s}.get(d, d) for d in shape), dtype) for name, (shape, dtype) in batch.items()}


def same(derivation, make, batch, points):
    for b, s in points:
        counted = eb.dry_run(make, derivation.setup.replace(batch=8, sequence=1024), batch=at(batch, b, s))
        derived = derivation.at(b, s)
        for name in ("peak", "peak_at", "parts", "phases"):
            assert getattr(derived, name) == getattr(counted, name), (b, s, name)


def adapted(checkpointing=None, dropout=0.0):
    """A small Llama with LoRA on query and value."""
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    config = transformers.LlamaConfig(
        hidden_size=WIDTH, intermediate_size=96, num_hidden_layers=LAYERS, num_attention_heads=4, vocab_size=VOCABULARY,
        max_position_embeddings=512, use_cache=False,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing == "reentrant"})
        model.enable_input_require_grads()
    lora = peft.LoraConfig(r=RANK, target_modules=["q_proj", "v_proj"], lora_dropout=dropout)
    return peft.get_peft_model(model, lora)


LABELLED = dict.fromkeys(("input_ids", "labels"), (("B", "S"), torch.int64))
TRAINED = LAYERS * 2 * RANK * 2 * WIDTH


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3"])
def test_of_adapters_alone_there_are_gradients_and_states(sharding):
    gpus = 1 if sharding == "none" else 4
    setup = eb.Setup(precision="bf16-mixed", gpus=gpus, sharding=sharding)
    trace = eb.dry_run(adapted, setup, batch=at(LABELLED, 2, 33))
    assert trace.parts_at("rest")["optimizer"] == 8 * TRAINED // gpus
    gradients = trace.parts_at("after_backward")["gradients"]
    assert gradients == 4 * TRAINED // (gpus if sharding in ("zero2", "zero3") else 1)
    whole = 4 * trace.model.parameters
    weights = trace.parts_at("rest")["parameters"]
    assert weights == whole if sharding in ("none", "zero1") else weights < whole // 3


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16", "fp16-mixed"])
def test_adapters_are_checkpointed_either_way(precision):
    setup = eb.Setup(precision=precision)
    plain, once, twice = (
        eb.dry_run(lambda c=c: adapted(c), setup, batch=at(LABELLED, 2, 33)).phases
        for c in (None, "not reentrant", "reentrant")
    )
    assert once["after_forward"] < plain["after_forward"] and twice["after_forward"] <= once["after_forward"]
    size = 2 if precision == "bf16" else 4
    given = (
        2 * 33 * (WIDTH // 4) * size + 33 * 8
    )  # cosines, sines and positions: the reentrant one's node holds what it was given
    assert twice["after_backward"] - once["after_backward"] == given


def test_adapters_are_derived():
    def make():
        return adapted("not reentrant", dropout=0.1)

    derivation = eb.derive(make, SETUP, LABELLED)
    same(derivation, make, LABELLED, [(1, 1), (3, 200), (7, 90)])
    assert "PeftModel" in repr(derivation)


SMALL = eb.Model(name="small", layers=1, width=32, heads=4, vocabulary=331, positions=128)


class Plain(nn.Module):
    """A module of one's own that knows nothing of adapters."""

    def __init__(self):
        super().__init__()
        self.token, self.layer = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens):
        return F.cross_entropy(self.layer(self.token(tokens)).flatten(0, 1), tokens.flatten() % WIDTH)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("model", "batch"), [(Plain, TOKENS), (SMALL, None)], ids=("one's own", "the catalog's"))
def test_adapters_of_the_setup_are_derived(model, batch):
    pytest.importorskip("peft")
    setup = eb.Setup(precision="bf16-mixed", adapters=eb.Lora(rank=RANK))
    derivation = eb.derive(model, setup, batch, keep=False)
    if batch:
        same(derivation, model, batch, [(1, 1), (3, 90)])
        return
    for b, s in ((1, 1), (3, 90)):
        run = setup.replace(batch=b, sequence=s)
        counted, theory, point = eb.dry_run(model, run), eb.budget(model, run), derivation.at(b, s)
        assert (point.peak, point.parts, point.phases) == (counted.peak, counted.parts, counted.phases)
        assert point.peak == theory.peak


def test_letters_for_all_dimensions_refuse_adapters():
    for switches in ({"adapters": eb.Lora(rank=4)}, {"adapters": eb.Lora(rank=4), "quantization": "nf4"}):
        with pytest.raises(
            ValueError,
            match=r"Setup\.adapters: rank=.* with letters 'all'; allowed: None; eb.derive takes it with letters 'BS'",
        ):
            eb.derive(SMALL, eb.Setup(sequence=64, **switches), letters="all")


class Checkpointed(nn.Module):
    """Layers that checkpoint themselves, by the name that they imported."""

    def __init__(self, reentrant=False, frozen=False):
        super().__init__()
        self.token, self.layers = (
            nn.Embedding(VOCABULARY, WIDTH),
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3)),
        )
        self.to_words, self.reentrant = nn.Linear(WIDTH, VOCABULARY), reentrant
        self.layers[1].requires_grad_(not frozen)

    def forward(self, tokens):
        x = self.token(tokens)
        for layer in self.layers:
            x = x + checkpoint(lambda x, layer=layer: F.gelu(layer(x)), x, use_reentrant=self.reentrant)
        return F.cross_entropy(self.to_words(x).flatten(0, 1), tokens.flatten())


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp16-mixed", "bf16", "bf16-master"])
def test_checkpointing_that_was_imported_by_name_runs_in_every_precision(precision):
    setup, batch = eb.Setup(precision=precision, optimizer="sgd"), at(TOKENS, 2, 16)
    once, twice = (eb.dry_run(lambda r=r: Checkpointed(r), setup, batch=batch) for r in (False, True))
    assert once.peak == twice.peak and once.phases["after_backward"] == twice.phases["after_backward"]
    kept = once.parts_at("after_forward")["activations"]
    width = 2 if precision.startswith("bf16") and precision != "bf16-mixed" else 4
    assert kept < 2 * 16 * WIDTH * width * 6  # of each layer its input alone


def test_the_last_rank_of_what_is_frozen_in_part_and_checkpoints_itself_is_derived():
    """331 rows among four: the last has 82 where the others have 83."""

    def make():
        return Checkpointed(frozen=True)

    setup = eb.Setup(precision="bf16-mixed", gpus=4, sharding="zero3")
    derivation = eb.derive(make, setup, TOKENS, rank=3)
    for b, s in ((1, 1), (3, 57)):
        counted, first = (eb.dry_run(make, setup, batch=at(TOKENS, b, s), rank=rank) for rank in (3, 0))
        last = derivation.at(b, s)
        assert (last.peak, last.parts, last.phases) == (counted.peak, counted.parts, counted.phases)
        assert eb.compare(last, counted).agree
        held = [trace.parts_at("rest")["optimizer"] for trace in (first, counted)]
        assert held[0] - held[1] == 8 * (2 * WIDTH + 1)  # of embeddings, the head and its bias
    with pytest.raises(ValueError, match=r"^derive\.rank: 4 is not a whole number from 0 to 3"):
        eb.derive(make, setup, TOKENS, rank=4)


class Rows8(torch.Tensor):
    """A matrix in eight bits with a scale for each row: whole only while a product needs it."""

    @staticmethod
    def __new__(cls, numbers, scale):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scale.dtype, device=numbers.device)

    def __init__(self, numbers, scale):
        self.numbers, self.scale = numbers, scale

    def __tensor_flatten__(self):
        return ["numbers", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, *_):
        return cls(inner["numbers"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0].numbers, args[0].scale)
        if func is torch.ops.aten._to_copy.default:
            return cls(args[0].numbers, args[0].scale.to(kwargs["dtype"]))

        def whole(t):
            return t.numbers.to(t.scale.dtype) * t.scale if isinstance(t, cls) else t

        return func(*tree_map(whole, args), **tree_map(whole, kwargs or {}))


class Quantized(nn.Module):
    """A frozen layer, in eight bits or not."""

    def __init__(self, quantized=True, opaque=False):
        super().__init__()
        self.token, self.layer = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        if quantized:
            numbers, scale = torch.empty(WIDTH, WIDTH, dtype=torch.int8), torch.empty(WIDTH, 1)
            kind = type("Opaque", (Rows8,), {"__tensor_flatten__": property()}) if opaque else Rows8
            self.layer.weight = nn.Parameter(kind(numbers, scale), requires_grad=False)
        self.layer.requires_grad_(False)

    def forward(self, tokens):
        return F.cross_entropy(self.head(self.layer(self.token(tokens))).flatten(0, 1), tokens.flatten())


@pytest.mark.parametrize(("precision", "width"), [("fp32", 4), ("bf16-mixed", 4), ("bf16", 2)])
def test_a_weight_that_is_made_of_others_takes_what_they_take(precision, width):
    setup, batch = eb.Setup(precision=precision), at(TOKENS, 4, 32)
    plain, made = (eb.dry_run(lambda q=q: Quantized(q), setup, batch=batch) for q in (False, True))
    saved = width * WIDTH * WIDTH - (WIDTH * WIDTH + width * WIDTH)
    assert plain.parts["parameters"] - made.parts["parameters"] == saved
    assert ("layer.weight", "parameters", 2, WIDTH * WIDTH + width * WIDTH) in made.by_owner(0)
    assert plain.parts_at("rest")["optimizer"] == made.parts_at("rest")["optimizer"]
    whole = [a for a in made.allocations if a.owner == "layer" and a.bytes == width * WIDTH * WIDTH]
    assert len(whole) >= 2  # made for the product: the numbers in their own data type, and times the scale


def test_a_weight_that_is_made_of_others_is_derived():
    same(eb.derive(Quantized, SETUP, TOKENS), Quantized, TOKENS, [(1, 1), (3, 57), (9, 1000)])


def test_a_weight_that_does_not_say_what_it_is_made_of_is_refused():
    with pytest.raises(
        ValueError, match=r"^dry_run\.model: parameter 'layer\.weight' of Quantized is a Opaque, a tensor that"
    ):
        eb.dry_run(lambda: Quantized(opaque=True), SETUP, batch=at(TOKENS, 4, 32))


def test_a_loss_that_has_the_head_in_it_is_derived():
    class Fused(Quantized):
        def forward(self, tokens):
            x = self.layer(self.token(tokens)).flatten(0, 1)
            return F.linear_cross_entropy(x, self.head.weight, tokens.flatten())

    derivation = eb.derive(Fused, eb.Setup(precision="bf16"), TOKENS)
    same(derivation, Fused, TOKENS, [(1, 1), (3, 57), (9, 1000)])
