"""What kernels take for themselves, asked of PyTorch's CUDA code: each alone, then where it decides a step's peak."""

import json
from pathlib import Path

import pytest

import everybyte as eb
from everybyte.formulas import symbols
from everybyte.formulas.workspaces import requested, said, summed
from everybyte.rehearsal import rehearse_script
from everybyte.rehearsal.steps import one, starter

KERNELS = Path(__file__).with_name("kernels.py")
SUMS = [(8192, 2304), (8192, 1280), (1020, 768), (1021, 768), (5115, 300), (2331, 900), (131072, 768)]
NORMS = [(65536, 768), (65537, 768), (80000, 1600), (131072, 2048)]
TABLES = [
    (8192, 50257, 768), (3072, 50257, 768), (3073, 50257, 768), (65536, 50257, 768), (20000, 528, 384), (20000, 1000, 384),
    (4609, 300, 16), (8192, 50257, 4), (9217, 50257, 4),
]  # fmt: skip
#: Batch, heads, sequence, width of a head, dropout.
ATTENTIONS = [
    (1, 12, 1024, 64, 0.0), (1, 12, 1024, 64, 0.1), (8, 12, 1024, 64, 0.0), (1, 16, 512, 64, 0.0), (1, 5, 333, 64, 0.0),
    (1, 4, 4096, 128, 0.0), (1, 20, 700, 80, 0.0), (2, 2, 1500, 96, 0.0), (1, 1, 8192, 128, 0.0), (1, 3, 1000, 256, 0.0),
    (1, 8, 1024, 40, 0.0), (2, 4, 130, 32, 0.0), (1, 2, 1, 64, 0.0),
]  # fmt: skip


def shaped(width=128, heads=1, vocabulary=300):
    return eb.Model(name="x", layers=1, width=width, heads=heads, vocabulary=vocabulary, positions=2**20)


def expected(gpu, what, *how):
    *sizes, kind = how
    pure = {"precision": kind}
    if what == "sum":
        rows, outputs = sizes
        values = {symbols.multiprocessors: gpu.multiprocessors, symbols.threads: gpu.threads}
        return int(summed(outputs, symbols.S).subs(values | {symbols.S: rows}))
    if what == "norm":
        rows, width = sizes
        terms = said(shaped(width), eb.Setup(batch=1, sequence=rows, **pure), gpu)
        return terms["norm_backward"] + terms["norm_sums"]
    if what == "embedding":
        tokens, vocabulary, width = sizes
        terms = said(shaped(width, 1, vocabulary), eb.Setup(batch=1, sequence=tokens, **pure), gpu)
        gradient = vocabulary * width * (2 if kind == "bf16" else 4)
        sorting = 24 * tokens + terms["embedding_sort"] - gradient if tokens > 3072 else 0
        return max(sorting, terms["embedding_unique"], terms["embedding_backward"])
    batch, heads, sequence, width, dropout = sizes
    setup = eb.Setup(batch=batch, sequence=sequence, dropout=dropout, **pure)
    terms = said(shaped(heads * width, heads), setup, gpu)
    return [terms["flash_split"] + terms["flash_dropout"], terms["flash_backward"] + terms["efficient_backward"]]


@pytest.mark.parametrize("name", ["h200", "a100-80gb", "rtx-4090", "t4"])
def test_each_kernel_takes_what_its_term_says(here, capfd, name):
    kinds = ("fp32",) if name == "t4" else ("fp32", "bf16")  # no flash attention in 16 bits before Ampere
    named = {"sum": SUMS, "norm": NORMS, "embedding": TABLES, "attention": ATTENTIONS}
    asked = [(what, *sizes, kind) for what, shapes in named.items() for sizes in shapes for kind in kinds]
    rehearse_script(["python", str(KERNELS), json.dumps(asked)], name, steps=0)
    line = next(line for line in capfd.readouterr().out.splitlines() if line.startswith("FOUND "))
    got = json.loads(line.removeprefix("FOUND "))
    off = {how: (g, e) for how, g in zip(asked, got, strict=True) if g != (e := expected(eb.gpu(name), *how))}
    assert off == {}


#: Small models, in which a kernel's own memory decides the peak: width, heads, vocabulary, setup, which operation's.
DECIDED = [
    (256, 2, 1001, {"batch": 1, "sequence": 2048, "precision": "bf16-mixed", "loss": "chunked", "checkpointing": "full"}, "up bias"),
    (1024, 8, 1001, {"batch": 4, "sequence": 2048, "loss": "chunked"}, "down bias"),
    (256, 2, 1001, {"batch": 1, "sequence": 1000, "precision": "bf16", "checkpointing": "full"}, "flash attention"),
]  # fmt: skip


@pytest.mark.parametrize("name", ["h200", "rtx-4090"])
def test_where_a_kernel_s_own_memory_decides_the_peak(here, name):
    gpu = eb.gpu(name)
    with starter(here, gpu) as start, start() as worker:
        for width, heads, vocabulary, fields, where in DECIDED:
            model, setup = shaped(width, heads, vocabulary), eb.Setup(optimizer="sgd", **fields)
            model = model.replace(positions=2048)
            predicted = eb.budget(model, setup)
            most, operation = requested(predicted, gpu)
            assert operation.startswith(where) and most > predicted.peak + 2 * gpu.cublas_workspace
            assert one(worker, model, setup, gpu, 60.0)[0].requested == most
