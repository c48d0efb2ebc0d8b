"""A page that answers a reader's config.json without Python: the rows of `catalog.configs`, and courses of each kind in letters.

What a step of such a model can look like is divided by `AXES`: steps of one kind that agree on all of them have one course, which
is traced once and stored. What no course is stored for, the page refuses by the axis's words. `tools/configs.py` writes the file.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib import resources
from itertools import product
from types import SimpleNamespace

from ..answers.headroom import ROUNDING, Headroom, takes
from ..ask.choices import LIMITS, Checkpointing, OptimizerName, PrecisionName
from ..ask.setup import Setup
from ..catalog import Model, from_config
from ..catalog.configs import ENDS, ROPES, rows
from ..catalog.models import bounds
from ..catalog.weights import learned, weights
from ..common import files
from ..draw import part
from ..step.course import MARKS, place_of
from ..theory import PARTS
from ..theory.attention import MASK_MULTIPLE
from ..theory.letters import text
from ..theory.optimizers import QUANTIZED
from ..theory.structure import letters
from ..theory.training import Fields, occurrences
from . import beside
from .beside import read, table
from .controls import cards
from .courses import Printer, Size, fingerprint

#: The stored courses, beside this file.
FILE = "configs.json"
PRECISIONS: tuple[PrecisionName, ...] = ("bf16", "bf16-mixed")
OPTIMIZERS: tuple[OptimizerName, ...] = ("adamw", "sgd", "adamw8bit")
CHECKPOINTINGS: tuple[Checkpointing, ...] = ("none", "full")
#: What decides a course beside the kind: name -> (its value, as Python and JavaScript both read it; what it is in words). They are fields of
#: `Model` and `Setup`; `period`, layers after which those with a window come again; and whether a precision or checkpointing is the second.
AXES = {
    "lone": ("(batch==1)*1", "a batch of one"),
    "tied": ("tied*1", "tie_word_embeddings"),
    "mixed": ("mixed*1", "bf16 autocast"),
    "full": ("full*1", "checkpointing"),
    "masked": ("(window>0)*(window<=sequence)", "a window no longer than the sequence"),
    "padded": (f"(window>0)*(window<=sequence)*(sequence%{MASK_MULTIPLE}>0)", f"a sequence that is no multiple of {MASK_MULTIPLE}, and no shorter than the window"),
    "single": ("(kv_heads==1)*1", "one key-value head for all"),
    "alike": ("(kv_heads==heads)*most(softcap,sinks,(window>0)*(window<=sequence))", "attention in eager or with a window's mask, of as many key-value heads as heads"),
    "eights": ("(head_width%8>0)*1", "a head's width that is no multiple of 8"),
    "turns": ("least(down(layers-dense_layers,period),4+(period==1))", "layers without the dense ones, by their period"),
    "over": ("layers%period", "layers after the last whole period"),
    "period": ("period*1", "layers from one that attends to all tokens to the next"),
    "dense": ("least(dense_layers,4)", "dense layers before those with experts"),
    "groups": ("1000*expert_groups+groups_per_token", "groups of experts, times 1,000, and how many of them a token may choose from"),
    "small": (
        "most(width==1,heads==1,ffn_width==1,vocabulary==1,sequence==1,experts==1,experts_per_token==1,expert_width==1,query_rank==1,"
        "value_width==1,(latent_rank>0)*(rope_width%8>0),(latent_rank>0)*(rope_width==head_width),(latent_rank>0)*(shared_experts==0),positions==0)*1",
        "a dimension of one, or one of none that the usual model has",
    ),
    "wide": ("(head_width>256)*(1-most(softcap,sinks))", "heads wider than the 256 that flash attention takes"),
}  # fmt: skip
_AXES = [Size(name, said, {}) for name, (said, _) in AXES.items()]
_PLAIN = dict.fromkeys(AXES, (0,)) | dict.fromkeys(("lone", "mixed", "full"), (0, 1)) | {"turns": (5,), "period": (1,)}
_WINDOW, _EITHER, _TIED = {"masked": (0, 1)}, {"tied": (0, 1)}, {"tied": (1,)}
#: Kind -> sets of axes' values where they differ from the above: each combination has a course.
FORMS: dict[str, list[dict]] = {
    "gpt2": [_TIED],
    "llama": [_EITHER | {"single": (0, 1)}],
    "mistral": [_WINDOW],
    "qwen2": [_EITHER],
    "qwen3": [_EITHER],
    "gemma": [_TIED | {"single": (0, 1)}],
    "gemma2": [_TIED | _WINDOW | {"period": (2,), "turns": (4,)}],
    "gemma3_text": [
        _TIED | _WINDOW | {"period": (6,), "turns": turns, "over": over, "single": single}
        for turns, over, single in (((4,), (0, 2, 4), (0,)), ((4,), (2,), (1,)), ((3,), (0,), (1,)))
    ],
    "phi3": [{}, {"masked": (1,), "alike": (0, 1)}],
    "mixtral": [{}],
    "qwen3_moe": [{}],
    "gpt_oss": [_WINDOW | {"period": (2,), "turns": (4,)}],
    "deepseek_v3": [{"dense": (1, 3), "groups": (0, 8004)}],
}  # fmt: skip
#: Kind -> dimensions at which weights lie on either side of what bitsandbytes keeps in 8 bits, each with its own course of an update.
_BIASED = [{"width": w, "heads": w // 64} for w in (768, 1024, 1280, 1600, 4096)]
_NARROW_OR_WIDE = [{"width": 2048}, {"width": 4096}]
SIZES = dict.fromkeys(FORMS, _NARROW_OR_WIDE) | {
    "gpt2": _BIASED,
    "qwen2": [{"width": w, "heads": w // 128, "kv_heads": k} for w, k in ((2048, 2), (4096, 8), (4096, 32))],
}
#: Fields that a letter of the courses stands for.
_LETTERS = {letter: name for name, letter in Fields.LETTERS.items()}


def form(kind: str, model: Model, setup: Setup) -> str:
    """The key of a step's course: its kind, and its value on each axis."""
    mixed, full = setup.precision == "bf16-mixed", setup.checkpointing == "full"
    names = vars(model) | {"period": model.period, "batch": setup.batch, "sequence": setup.sequence}
    return ",".join([kind, *(str(int(axis(**names, mixed=mixed, full=full))) for axis in _AXES)])


def forms(kind: str) -> Iterator[tuple[Model, Setup]]:
    """A model and a setup that stand for each course of a kind, deep enough for its loops."""
    usual = from_config({"model_type": kind, "norm_topk_prob": True} if kind == "qwen3_moe" else {"model_type": kind})
    for axes in FORMS[kind]:
        for values in product(*(_PLAIN | axes).values()):
            at = SimpleNamespace(**dict(zip(AXES, values, strict=True)))
            layers = at.dense + at.turns * at.period + at.over
            window = 32 if at.masked else 128 * (at.period > 1)
            keys = usual.heads // 4 if at.masked and usual.kv_heads == usual.heads and not at.alike else usual.kv_heads
            model = usual.replace(
                layers=layers, tied=bool(at.tied), window=window, full_every=at.period if at.period > 1 else 0,
                kv_heads=1 if at.single else keys, dense_layers=at.dense,
                expert_groups=at.groups // 1000, groups_per_token=at.groups % 1000,
            )  # fmt: skip
            setup = Setup(
                batch=1 if at.lone else 4, sequence=64, precision=PRECISIONS[at.mixed], checkpointing=CHECKPOINTINGS[at.full]
            )  # fmt: skip
            yield model, setup.of(model.own)


class Bare(Printer):
    """Courses without names and owners, of which only the peak is asked; each tensor rounded up to a multiple of k bytes."""

    def amount(self, piece):
        count = "" if text(piece.count) == "1" else f"*({text(piece.count)})"
        return f"even(({text(piece.numbers)})*({text(piece.width)}),k){count}"

    def put(self, table, entry):
        return super().put(table, entry.replace("whole(", "down(") if table == "sizes" else entry)

    def named(self, o):
        return "", o.name if o.name in MARKS else place_of(o), ""

    def _turns(self, turn, stands):
        return ()


def update_key(kind: str, model: Model, optimizer: str) -> str:
    """The key of an optimizer's step: of one in 8 bits also which weights are large enough for that."""
    found = [str(int(w.numbers >= QUANTIZED)) for w in learned(model) if w.count and optimizer == "adamw8bit"]
    return f"{kind},{int(model.tied)},{min(model.dense_layers, 4)},{optimizer},{''.join(found)}"


def traced(kinds: Mapping = FORMS) -> dict:
    """What the page computes with: the tables of `Steps`, and of each kind its parameters and weights in letters."""
    printer, weighed = Bare(), {}
    for kind in kinds:
        for model, setup in forms(kind):
            printer.batch(form(kind, model, setup), model, setup)
            for sizes, optimizer in product(SIZES[kind], OPTIMIZERS):
                sized = model.replace(**sizes)
                key = update_key(kind, sized, optimizer)
                if key not in printer.updates:
                    printer.update(key, sized, setup.replace(optimizer=optimizer))
            weighed[f"{kind},{int(model.tied)}"] = _weighed(model)
    return printer.tables() | {"weights": weighed}


def _weighed(model):
    """[numbers of a weight, how many there are of it, whether it is trained] of each weight, in letters."""
    letters_of, trained = Fields(model), {w.name for w in learned(model)}
    times = occurrences(letters_of)
    return [
        [text(w.numbers), text(w.count * times[w.group]), int(w.name in trained)] for w in weights(letters_of) if w.count
    ]  # fmt: skip


def signature() -> str:
    """SHA-256 of what the courses depend on."""
    found = hashlib.sha256(fingerprint().encode())
    package = resources.files(__package__.rpartition(".")[0])
    for path in sorted(package.joinpath("reference", "hugging_face").iterdir(), key=lambda path: path.name):
        if path.name.endswith(".py"):
            found.update(files.program(path.read_text(encoding="utf-8")).encode())
    found.update(repr((AXES, FORMS, SIZES, PRECISIONS, OPTIMIZERS, CHECKPOINTINGS)).encode())
    return found.hexdigest()


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Every Byte: does your model fit?</title>
<style>
{style}
</style></head><body>
<nav aria-label="book"><a href="index.html">Every Byte</a></nav>
<main>
<h1>Does your model fit?</h1>
<p>Give the <code>config.json</code> of a language model of Hugging Face's, and see the peak of a training step to the byte. The file is read in
this page, and goes nowhere.</p>
<div id="sides">
<div>
<div id="drop">
<label for="file">Drop the file here, or choose it:</label>
<input id="file" type="file" accept=".json,application/json">
<label for="text">or paste its text:</label>
<textarea id="text" spellcheck="false" autocomplete="off"></textarea>
<button id="example" type="button">an example, of Llama 3.2 1B's sizes</button>
</div>
<form id="controls" aria-label="the training step" hidden>
<label>batch <input name="batch" type="number" min="1" max="{most}" value="1" required></label>
<label>sequence <input name="sequence" type="number" min="2" value="2048" required></label>
<label>precision <select name="precision">{precisions}</select></label>
<label>optimizer <select name="optimizer">{optimizers}</select></label>
<label>checkpointing <select name="checkpointing">{checkpointings}</select></label>
<label class="wide">GPU <select name="gpu"></select></label>
</form>
</div>
<section id="said" aria-live="polite" aria-label="the answer"></section>
</div>
<noscript><p>Without JavaScript this page computes nothing: <code>everybyte fit config.json</code> answers in a terminal.</p></noscript>
</main>
<script type="module">
{program}
new Page(document.body);
</script></body></html>
"""
#: What choices are called, where that is not their name.
_CALLED = {"adamw": "AdamW", "sgd": "SGD", "adamw8bit": "AdamW, 8 bits"}
#: A file as Hugging Face has them, of Llama 3.2 1B's sizes.
EXAMPLE = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": True,
}  # fmt: skip


def given() -> tuple[dict, list[Size]]:
    """(what the page computes with, as JSON holds it; the sizes and axes of it, which are printed as functions).

    Raises:
        ValueError: where the stored courses are of other code: their numbers might be wrong.
    """
    tables = dict(table(FILE))
    if tables.pop("signature") != signature():
        raise ValueError(f"{FILE}: of other code than this; allowed: what python tools/configs.py writes")
    weighed = tables.pop("weights")
    texts = (said for rows in weighed.values() for row in rows for said in row[:2])
    sources = dict.fromkeys([*tables["sizes"], *texts])
    functions = [*(Size(source, source, {}) for source in sources), *_AXES]
    some = from_config(EXAMPLE)
    like = {p: letters(some, Setup(precision=p).of(some.own)) for p in PRECISIONS}
    shown = {
        name: {"title": card.title, "usable": Headroom().usable(card)} for name, card in cards().items() if takes(card, "bf16")
    }  # fmt: skip
    return {
        "rows": rows(), "bounds": {f.name: bounds(f.name) for f in fields(Model) if f.type is int}, "ropes": ROPES, "ends": ENDS, "letters": _LETTERS, "constants": like, "weights": weighed,
        "axes": [[name, words] for name, (_, words) in AXES.items()], "quantized": QUANTIZED, "rounding": ROUNDING,
        "limits": {name: LIMITS[name] for name in ("batch", "sequence")}, "gpus": shown, "gpu": "h100-80gb", "example": EXAMPLE,
        "parts": [[name, part(name).label, name] for name in PARTS], "colors": {name: part(name).color for name in PARTS},
        "courses": tables | {"by": ["form"], "update_by": ["update"]},
    }, functions  # fmt: skip


def program() -> str:
    """The page's JavaScript."""
    data, functions = given()
    before = beside.program({f.name: f.javascript for f in functions})
    return f"{before}\nconst GIVEN = {files.literal(data)};\n{read('dropping.js', 'configs.js')}"


def page() -> str:
    """The page, as HTML: one file that needs no network."""
    offered = {"precisions": PRECISIONS, "optimizers": OPTIMIZERS, "checkpointings": CHECKPOINTINGS}
    options = {
        name: "".join(f'<option value="{each}">{_CALLED.get(each, each)}</option>' for each in choices)
        for name, choices in offered.items()
    }
    return _PAGE.format(style=read("configs.css"), program=program(), most=LIMITS["batch"][1], **options)
