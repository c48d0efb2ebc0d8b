"""Steps that others timed and published, which `everybyte.answers.throughput` is held to."""

from dataclasses import dataclass, replace
from functools import cache

from everybyte.ask.mesh import Mesh
from everybyte.ask.setup import Setup
from everybyte.catalog import Gpu, Model, gpus
from everybyte.catalog import model as find_model

TITAN = "github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3"
FOUNDRY = "github.com/mosaicml/llm-foundry, scripts/train/benchmarking/README.md, H100 80GB BF16"
MEGATRON = (
    "github.com/NVIDIA/Megatron-LM, d98e8a64, tests/functional_tests/test_cases/gpt, golden_values_dev_dgx_h100.json"
)
#: Of both of Megatron's runs, before its vocabulary is padded: a null tokenizer adds an end to 131,072 or 131,073 words. A GPT that
#: shares keys, which the book's does not, stands as a Llama of the same products: three matrices in place of an MLP's two of 16,384.
GPT = find_model("llama-3.1-8b", "reference").replace(
    name="gpt3-7b", layers=32, width=4096, heads=32, kv_heads=8, vocabulary=131072, positions=8192, ffn_width=10924
)


@dataclass(frozen=True)
class Run:
    """A published run in bf16. tokens: a second and GPU. source: where it stands."""

    model: Model
    setup: Setup
    tokens: int
    source: str
    gpu: Gpu


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
    h100 = gpus()["h100-80gb"]
    # "H100 equipped with 96GB HBM2e with 2.4 TB/sec", at 500 W: as fast as the catalog's in products, they say, they do not know.
    slower = replace(h100, bandwidth=2400 * 10**9)
    llama = find_model("llama-3.1-8b", "reference")
    for many, tokens in ((8, 5762), (8, 6667), (128, 5605), (128, 6514)):  # the second of each compiled
        yield Run(llama, fsdp.replace(gpus=many), tokens, TITAN, slower)
    # Seconds of an iteration of eight sequences; weights are gathered, and gradients reduced, once: the distributed optimizer, overlapped.
    stands = fsdp.replace(sharding="zero2", checkpointing="none")
    tensor, virtual = Mesh(tensor=4), Mesh(pipeline=4, stages=8, schedule="interleaved-1f1b")
    yield Run(GPT, stands.replace(mesh=tensor, accumulation=2), round(8192 / 1.11522), MEGATRON, h100)
    yield Run(GPT, stands.replace(mesh=virtual, batch=1, accumulation=4), round(8192 / 1.15047), MEGATRON, h100)
    for (size, full), swept in SWEPT.items():
        for sequence, many, batch, accumulation, tokens in swept:
            setup = fsdp.replace(
                sequence=sequence, gpus=many, batch=batch, accumulation=accumulation, checkpointing="full" if full else "none"
            )  # fmt: skip
            yield Run(_mpt(*SIZES[size], sequence), setup, tokens, FOUNDRY, h100)


#: MosaicML's models: layers, width, heads.
SIZES = {
    "70b": (80, 8192, 64), "30b": (48, 7168, 56), "13b": (40, 5120, 40), "7b": (32, 4096, 32), "3b": (32, 2560, 20), "1b": (24, 2048, 16),
    "760m": (24, 1536, 12),
}  # fmt: skip
#: Their runs: (model, whether blocks are recomputed) -> (tokens of a sequence, GPUs, sequences of a micro-batch, micro-batches, tokens a
#: second and GPU) each.
SWEPT = {
    ("70b", True): (
        (2048, 32, 2, 16, 882), (2048, 64, 8, 4, 1039), (2048, 128, 8, 1, 1058), (2048, 256, 8, 1, 1035), (2048, 512, 8, 1, 1007),
    ),
    ("30b", True): (
        (1024, 8, 6, 21, 2084), (2048, 8, 3, 21, 2002), (2048, 16, 10, 3, 2263), (2048, 32, 14, 3, 2308), (2048, 128, 8, 1, 2199),
        (2048, 256, 8, 1, 2148), (2048, 512, 8, 1, 2115), (4096, 8, 1, 21, 1802), (8192, 8, 1, 21, 1384),
    ),
    ("13b", True): (
        (1024, 8, 40, 3, 5502), (2048, 128, 16, 1, 5080), (2048, 256, 16, 1, 4989), (2048, 512, 16, 1, 4952), (4096, 8, 10, 3, 4717),
        (16384, 8, 3, 3, 2985), (32768, 8, 1, 3, 1976),
    ),
    ("13b", False): (
        (2048, 8, 2, 1, 4792), (2048, 16, 2, 1, 4767), (2048, 32, 2, 1, 4811), (2048, 64, 2, 1, 4800),
    ),
    ("7b", True): (
        (1024, 8, 64, 2, 10203), (4096, 8, 16, 2, 8611), (8192, 8, 8, 2, 6935), (32768, 8, 2, 2, 3318), (65536, 8, 1, 2, 1956),
    ),
    ("7b", False): (
        (2048, 8, 6, 1, 10643), (2048, 128, 6, 1, 10475), (2048, 256, 6, 1, 10119), (2048, 512, 6, 1, 9670),
    ),
    ("3b", True): (
        (32768, 8, 3, 6, 5873), (65536, 8, 1, 2, 3262),
    ),
    ("3b", False): (
        (512, 8, 40, 6, 27965), (1024, 8, 20, 6, 27046), (2048, 16, 10, 3, 24142), (2048, 32, 6, 3, 23021), (2048, 64, 6, 3, 22525),
        (2048, 128, 8, 1, 23422), (2048, 256, 8, 1, 22772), (2048, 512, 8, 1, 21664), (4096, 8, 5, 6, 20964), (8192, 8, 3, 6, 16578),
        (16384, 8, 1, 6, 11152),
    ),
    ("1b", True): (
        (65536, 8, 1, 2, 5506),
    ),
    ("1b", False): (
        (512, 8, 56, 4, 52275), (1024, 8, 18, 4, 48910), (2048, 8, 14, 1, 45455), (2048, 16, 20, 1, 46037), (2048, 32, 20, 1, 45130),
        (2048, 64, 20, 1, 44402), (2048, 128, 12, 1, 44123), (2048, 256, 12, 1, 42555), (2048, 512, 12, 1, 39837),
        (4096, 8, 7, 4, 38535), (8192, 8, 3, 4, 29157), (16384, 8, 2, 4, 19649), (32768, 8, 1, 4, 12025),
    ),
    ("760m", False): (
        (512, 8, 96, 2, 83749), (1024, 8, 48, 2, 78581), (2048, 8, 24, 2, 63147), (2048, 16, 24, 1, 68551), (2048, 32, 24, 1, 67971),
        (4096, 8, 12, 2, 55459), (8192, 8, 6, 2, 41825), (16384, 8, 3, 2, 27815), (32768, 8, 1, 2, 16291),
    ),
}  # fmt: skip
