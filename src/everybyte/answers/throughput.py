"""What others measured of steps, beside the data sheet's time: by how much a real step takes longer, of which ranges are made."""

from dataclasses import dataclass
from functools import cache

from ..ask.mesh import Mesh
from ..ask.setup import Setup
from ..catalog import Model
from ..catalog import model as find_model

TITAN = "github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3"
FOUNDRY = "github.com/mosaicml/llm-foundry, scripts/train/benchmarking/README.md, H100 80GB BF16"
MEGATRON = (
    "github.com/NVIDIA/Megatron-LM, d98e8a64, tests/functional_tests/test_cases/gpt, golden_values_dev_dgx_h100.json"
)
#: Of both of Megatron's runs, before its vocabulary is padded: a null tokenizer adds an end to 131,072 or 131,073 words.
GPT = Model(
    name="gpt3-7b", layers=32, width=4096, heads=32, kv_heads=8, vocabulary=131072, positions=8192, ffn_width=16384,
    tied=False,
)  # fmt: skip
#: The GPU of all of them.
GPU = "h100-80gb"
#: How many times as long as `layouts.priced` says a run took, at least and at most: of `runs` of sequences of up to `SHORT` tokens, and
#: of longer ones, whose attention is further from the data sheet's rate. Rounded outwards.
SHORT = 8192
LEAST, MOST, MOST_LONG = 1.2, 2.5, 3.7


def between(setup: Setup) -> tuple[float, float]:
    """What a time at the data sheet's rates is multiplied with, for the least and the most that a step is expected to take."""
    return LEAST, MOST if setup.sequence <= SHORT else MOST_LONG


@dataclass(frozen=True)
class Run:
    """A published run on H100s in bf16. tokens: a second and GPU. source: where it stands."""

    model: Model
    setup: Setup
    tokens: int
    source: str


def _mpt(layers, width, heads, sequence):
    """A model of MosaicML's sweep, by its dimensions."""
    sizes = {"layers": layers, "width": width, "heads": heads, "positions": sequence, "vocabulary": 50_368}
    return find_model("gpt2").replace(activation="gelu", name=f"mpt, {layers} x {width}", **sizes)


@cache
def runs() -> tuple[Run, ...]:
    """The runs that the factors are of."""
    return tuple(_runs())


def _runs():
    fsdp = Setup(precision="bf16-mixed", sharding="zero3", sequence=8192, batch=2, gpus=8, checkpointing="operations")
    llama = find_model("llama-3.1-8b", "reference")
    for gpus, tokens in ((8, 5762), (8, 6667), (128, 5605), (128, 6514)):  # the second of each compiled
        yield Run(llama, fsdp.replace(gpus=gpus), tokens, TITAN)
    # Seconds of an iteration of eight sequences; weights are gathered, and gradients reduced, once: the distributed optimizer, overlapped.
    stands = fsdp.replace(sharding="zero2", checkpointing="none")
    tensor, virtual = Mesh(tensor=4), Mesh(pipeline=4, stages=8, schedule="interleaved-1f1b")
    yield Run(GPT, stands.replace(mesh=tensor, accumulation=2), round(8192 / 1.11522), MEGATRON)
    yield Run(GPT, stands.replace(mesh=virtual, batch=1, accumulation=4), round(8192 / 1.15047), MEGATRON)
    sizes = {
        "70b": (80, 8192, 64),
        "30b": (48, 7168, 56),
        "13b": (40, 5120, 40),
        "7b": (32, 4096, 32),
        "3b": (32, 2560, 20),
    }
    swept = (
        ("70b", 2048, 64, 8, 4, True, 1039), ("70b", 2048, 32, 2, 16, True, 882), ("30b", 2048, 32, 14, 3, True, 2308),
        ("30b", 2048, 8, 3, 21, True, 2002), ("30b", 8192, 8, 1, 21, True, 1384), ("13b", 2048, 64, 2, 1, False, 4800),
        ("13b", 2048, 8, 2, 1, False, 4792), ("13b", 4096, 8, 10, 3, True, 4717), ("13b", 32768, 8, 1, 3, True, 1976),
        ("7b", 2048, 8, 6, 1, False, 10643), ("7b", 8192, 8, 8, 2, True, 6935), ("7b", 65536, 8, 1, 2, True, 1956),
        ("3b", 2048, 64, 6, 3, False, 22525), ("3b", 8192, 8, 3, 6, False, 16578),
    )  # fmt: skip
    for size, sequence, gpus, batch, accumulation, full, tokens in swept:
        setup = fsdp.replace(
            sequence=sequence,
            gpus=gpus,
            batch=batch,
            accumulation=accumulation,
            checkpointing="full" if full else "none",
        )
        yield Run(_mpt(*sizes[size], sequence), setup, tokens, FOUNDRY)
