"""Chapter 16's explorer: the loss's logits-sized tensors against all blocks' activations, as the vocabulary grows."""

from ..catalog import Model
from ..formulas import bindings, formula
from ..formulas.symbols import L
from ..rules.formulas import GPT, refused
from ..setup import Setup
from .controls import OF_STATES, Choice, check_setup, gpts, opens, precision_label, shared
from .explorer import Explorer
from .pictures import Lines

_CHUNKS = (2, 8, 64)


@opens
def loss(model: Model | None = None, setup: Setup | None = None) -> Explorer:
    """Bytes of the logits-sized tensors at the loss's worst moment, and of what all blocks keep, against the vocabulary.

    Args:
        model, setup: what it opens with, a model of your own too; by default GPT-2, and what the other explorers show.

    Raises:
        ValueError: a model that is not of GPT-2's architecture, a batch or a sequence that is no power of two.
    """
    from ..catalog import models

    start = model or models()["gpt2"]
    if unlike := refused(GPT, start):
        raise ValueError(unlike)
    check_setup("loss", setup, *OF_STATES, "batch", "sequence", "attention")
    known = gpts() | {start.name: start}
    sizes = {m.vocabulary: name for name, m in reversed(models().items())}
    own = "(the model's)"
    vocabularies = {own: {}} | {f"{v:,}, as {sizes[v]}": {"vocabulary": v} for v in sorted(sizes)}
    chunks = {"plain": {"chunked": 0, "loss_chunks": 1}}
    chunks |= {f"in {n} chunks": {"chunked": 1, "loss_chunks": n} for n in _CHUNKS}
    controls = [
        Choice("model", "model", {name: bindings(m, None) for name, m in known.items()}, start.name),
        Choice("vocabulary", "vocabulary", vocabularies, own, kind="slider"),
        shared("precision", setup and precision_label(setup)),
        Choice("attention", "attention", {"flash": {"eager": 0}, "eager": {"eager": 1}}, setup and setup.attention),
        Choice("loss", "loss", chunks, "plain"),
        shared("batch", setup and f"{setup.batch:,}"),
        shared("sequence", setup and f"{setup.sequence:,}"),
    ]
    curves = [
        ("loss", "the loss's logits-sized tensors", formula("loss.logits")),
        ("activations", "what all blocks keep", L * formula("activations.block").given(dropout=0)),
    ]
    gpt2 = {"model": "gpt2", "attention": "flash", "loss": "plain", "vocabulary": own}
    presets = {
        "GPT-2, autocast": gpt2 | {"precision": "bf16-mixed"},
        "GPT-2 with Llama 3's vocabulary": gpt2 | {"vocabulary": f"128,256, as {sizes[128256]}"},
        "GPT-2 XL": gpt2 | {"model": "gpt2-xl"},
        "64 chunks": gpt2 | {"loss": "in 64 chunks"},
    }
    values = sorted({2**i for i in range(8, 20)} | set(sizes) | {start.vocabulary})
    return Explorer(
        "The loss against the blocks", controls, Lines("vocabulary", "vocabulary", values, curves, log=True), presets,
        subject=("model", "precision", "attention", "loss"), also=("batch", "sequence"),
    )  # fmt: skip
