"""Steps: budgets and dry runs of the grid, modules of one's own, Hugging Face configurations, derivations that are kept."""

import json
import tempfile
from functools import cache
from pathlib import Path

import grid
import hypothesis
import numpy
import own_modules
import torch
from hypothesis import strategies as st
from torch import nn

import everybyte as eb
from everybyte import draw as drawing
from everybyte.theory.budget import peaks

from .drawn import JUNK, SMALL, STEP, environment, junk_or, mostly, tags
from .values import FIELDS

_SMALL = {
    "batch": st.integers(1, 4),
    "sequence": st.integers(1, 16),
    "gpus": st.sampled_from([1, 2, 8]),
    "accumulation": st.integers(1, 3),
}


def _step(draw):
    """A step of the grid that the witnesses are held to, with a field of the setup or two changed, or none."""
    kind = draw(st.sampled_from([grid.everything, grid.everything, grid.spared, grid.flat]))
    made, said, rounding = kind(draw(st.integers(0, 10**6)))
    names = draw(st.lists(st.sampled_from(list(FIELDS)), max_size=2))
    return made, said.replace(**{name: draw(junk_or(_SMALL.get(name, FIELDS[name]), 4)) for name in names}), rounding


def budget(draw):
    """A budget's parts sum to its peak, in both roundings, and `peaks` says the same of many."""
    made, said, rounding = _step(draw)
    rounding = draw(junk_or(st.just(rounding), 20))
    found = eb.budget(made, said, rounding)
    assert sum(found.parts.values()) == found.peak and found.peak % rounding == 0
    assert max(found.live) == found.peak
    if said.loss == "plain":
        assert peaks(made, said, [said.batch], [said.sequence], rounding)[0].tolist() == [found.peak]


def dry_run(draw):
    """PyTorch's own step takes what the theory says."""
    made, said, rounding = _step(draw)
    hypothesis.assume(max(said.gpus, said.accumulation) <= 8 and said.batch * said.sequence <= 2**12)
    assert eb.dry_run(made, said, rounding).peak == eb.budget(made, said, rounding).peak


def module(draw):
    """A module of one's own: its weights' bytes are those of its own numbers, and its loss's gradient is one of each."""
    kinds = [*("linear norm relu dropout gelu " * 3).split(), "broken", "data"]
    layers = draw(st.lists(st.sampled_from(kinds), max_size=4)) + ["linear"] * draw(st.sampled_from([0, 1, 1, 1, 1]))
    width, shape = draw(st.integers(1, 9)), draw(junk_or(st.tuples(st.integers(1, 5), st.integers(1, 9)), 12))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            made = {
                "linear": lambda: nn.Linear(width, width), "norm": lambda: nn.LayerNorm(width), "relu": nn.ReLU,
                "dropout": nn.Dropout, "gelu": nn.GELU,
            }  # fmt: skip
            self.layers = nn.ModuleList(made.get(name, nn.Identity)() for name in layers)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            if "broken" in layers:
                return x
            return x.sum() if "data" not in layers or x.sum() > 0 else x.mean()

    numbers = sum(p.numel() for p in Net().parameters())
    shape = (*shape, width) if isinstance(shape, tuple) else shape
    found = eb.dry_run(Net, eb.Setup(optimizer="sgd"), batch={"x": (shape, torch.float32)})
    assert found.parts["parameters"] == 4 * numbers and found.phases["rest"] == 4 * numbers
    assert found.parts_at("after_backward")["gradients"] == 4 * numbers


def own(draw):
    """A module with features of its own takes what PyTorch's MemTracker counts on the CPU."""
    own_modules.agree(draw)


class _Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).sum()


def batch(draw):
    """The arguments of a forward: what no tensor has is refused, of any other the weights and the gradients are counted."""
    strange = st.tuples(st.integers(-2, 2**70) | JUNK | st.just(numpy.int64(3)), junk_or(st.just(4), 9))
    shape = draw(mostly(st.lists(st.integers(1, 5), max_size=2).map(lambda sizes: (*sizes, 4)), strange | JUNK, 3))
    dtype = draw(
        mostly(
            st.just(torch.float32), st.sampled_from([torch.bfloat16, torch.int64, torch.complex64, "float32"]) | JUNK, 6
        )
    )
    given = draw(
        mostly(st.just({"x": (shape, dtype)}), st.just({"y": (shape, dtype)}) | st.just([torch.ones(2, 4)]) | JUNK, 6)
    )
    found = eb.dry_run(_Net, eb.Setup(optimizer="sgd"), batch=given)
    assert found.parts["parameters"] == found.parts_at("after_backward")["gradients"] == 80


def name(draw):
    """A model's name, wherever it is shown: no tag of it gets through, and nothing breaks."""
    pieces = st.sampled_from(
        [
            "<b>",
            "<script>alert(1)</script>",
            "&amp;",
            '"><img src=x>',
            "$\\frac{$",
            "\n",
            "{0}",
            "%s",
            "\x1b[2J",
            "x" * 99,
        ]
    )
    made = SMALL.replace(name=draw(st.lists(pieces | st.text(max_size=3), max_size=3).map("".join)))
    counted = eb.dry_run(made, STEP)
    for said in (
        eb.budget(made, STEP), counted, eb.compare(eb.budget(made, STEP), counted), eb.fit(made, STEP, "h200"),
        eb.serve(made.replace(width=64, heads=4), "h200", 32),
    ):  # fmt: skip
        tags(said._repr_html_() if hasattr(said, "_repr_html_") else "")
    assert drawing.png(drawing.timeline(counted))[:4] == b"\x89PNG"


_KINDS = ("llama", "gpt2", "mistral", "mixtral", "qwen2", "gemma", "bert", "gpt_neox")
_HUGE = st.sampled_from([0, -1, 10**6, 10**9, 2**62, 2**70, 1e9, None, "8", [], True])
#: What may stand in a configuration beside its dimensions.
_MORE = {
    "num_labels": _HUGE, "num_hidden_layers": _HUGE, "n_layer": _HUGE, "max_position_embeddings": _HUGE, "num_local_experts": _HUGE | st.integers(1, 4),
    "experts_implementation": junk_or(st.sampled_from(["grouped_mm", "batched_mm", "eager"])), "attn_implementation": junk_or(st.sampled_from(["eager", "sdpa"])),
    "tie_word_embeddings": junk_or(st.booleans()), "hidden_act": junk_or(st.sampled_from(["gelu", "silu", "relu"])), "rope_theta": JUNK, "auto_map": JUNK,
    "torch_dtype": junk_or(st.sampled_from(["float16", "bfloat16"])), "use_cache": JUNK, "attention_dropout": JUNK, "sliding_window": JUNK | st.integers(1, 9),
    "layer_types": JUNK | st.just(["full_attention"]), "text_config": JUNK | st.just({"model_type": "nobody"}), "quantization_config": JUNK, "rope_scaling": JUNK,
    "num_experts_per_tok": _HUGE | st.just(1), "output_hidden_states": JUNK, "id2label": JUNK | st.just({"0": "x"}), "pad_token_id": JUNK, "initializer_range": JUNK,
}  # fmt: skip
#: Texts of a file that is hardly one.
_FILES = st.one_of(
    st.text(max_size=9), st.integers(1, 100_000).map(lambda n: "[" * n), st.integers(1, 50_000).map(lambda n: '{"a":' * n),
    st.integers(1, 9000).map(lambda n: '{"model_type": "llama", "vocab_size": ' + "9" * n + "}"), JUNK.map(repr),
    st.builds(lambda n: json.dumps({"model_type": "x" * n}), st.integers(0, 20_000)),
)  # fmt: skip


def config(draw):
    """A Hugging Face configuration: the bytes of its parameters are those of the model that transformers builds."""
    import transformers

    from everybyte.deriving import given

    said = {
        "model_type": draw(junk_or(st.sampled_from(_KINDS), 20)),
        "vocab_size": draw(junk_or(st.integers(2, 99), 20)),
    }
    said |= {
        "num_hidden_layers": 1, "n_layer": 1, "hidden_size": 8, "n_embd": 8, "num_attention_heads": 2, "num_local_experts": 2,
        "max_position_embeddings": 16, "intermediate_size": draw(junk_or(st.integers(1, 32), 20)), "n_head": draw(st.sampled_from([1, 2, 3])),
        "num_key_value_heads": draw(junk_or(st.just(2), 20)),
    }  # fmt: skip
    sizes = ["num_hidden_layers", "n_layer", "num_labels", "num_local_experts"]
    more = draw(st.lists(mostly(st.sampled_from(list(_MORE)), st.sampled_from(sizes), 3), max_size=2, unique=True))
    said |= {name: draw(_MORE[name]) for name in more}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        text = json.dumps(said) if draw(st.integers(1, 6)) > 1 else draw(_FILES)
        path.write_text(text, encoding="utf-8", errors="replace")
        made = given.config(str(path))
    found = eb.dry_run(made, eb.Setup(batch=1, sequence=4, optimizer="sgd", attention="eager"))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(made)
    assert found.parts["parameters"] == sum(p.numel() * 4 for p in model.parameters())


@cache
def _kept():
    return tempfile.TemporaryDirectory(prefix="fuzz-")


def derived(draw):
    """Two configurations that differ in one setting, asked one after another: each derivation is the dry run, kept or not."""
    import transformers
    import transformers.masking_utils

    kind = draw(st.sampled_from(["MixtralConfig", "MixtralConfig", "LlamaConfig"]))
    sizes = {
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    sizes |= {"vocab_size": 10, "max_position_embeddings": 16} | (
        {"num_local_experts": 2} if kind == "MixtralConfig" else {}
    )
    differs = {
        "experts_implementation": ["grouped_mm", "batched_mm"], "attn_implementation": ["eager", "sdpa"], "use_cache": [True, False],
        "tie_word_embeddings": [True, False], "hidden_act": ["silu", "relu"],
    }  # fmt: skip
    field = draw(st.sampled_from(["experts_implementation"] * 2 + list(differs)))
    setup = eb.Setup(optimizer="sgd", batch=draw(st.integers(1, 3)), sequence=draw(st.integers(1, 9)))
    with environment("EVERYBYTE_CACHE", _kept().name):
        for value in draw(st.permutations(differs[field])):
            made = getattr(transformers, kind)(**sizes, **{field: value})
            found = eb.derive(made, setup).at(setup.batch, setup.sequence)
            counted = eb.dry_run(made, setup)
            assert (found.peak, found.parts) == (counted.peak, counted.parts), (field, value)


SUBJECTS = {budget: 800, dry_run: 200, module: 400, batch: 400, name: 50, config: 200, derived: 30, own: 300}  # fmt: skip
