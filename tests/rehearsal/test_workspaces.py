"""What kernels take for themselves, asked of PyTorch's CUDA code: each alone, then where it decides a step's peak."""

import json
from pathlib import Path

import kernel_shapes
import pytest
from sympy import Integer

import everybyte as eb
from everybyte.formulas import symbols
from everybyte.formulas.workspaces import TILES, indexed, requested, said, summed
from everybyte.rehearsal import rehearse_script
from everybyte.rehearsal.steps import one, starter

KERNELS = Path(__file__).with_name("kernels.py")


def shaped(width=128, heads=1, vocabulary=300):
    return eb.Model(name="x", layers=1, width=width, heads=heads, vocabulary=vocabulary, positions=2**20)


def llama(name="llama-3.2-1b", **changes):
    small = {
        "layers": 1,
        "width": 256,
        "heads": 4,
        "kv_heads": 4,
        "head_width": 64,
        "ffn_width": 512,
        "vocabulary": 1000,
    }
    more = {"expert_width": 256} if "mixtral" in name else {}
    return eb.model(name, code="reference").replace(**{"name": "x", "positions": 2**20} | small | more | changes)


def expected(gpu, what, *how):
    *sizes, kind = how
    pure = {"precision": kind}
    if what == "sum":
        rows, outputs = sizes
        values = {symbols.multiprocessors: gpu.multiprocessors, symbols.threads: gpu.threads}
        return int(summed(outputs, symbols.S).subs(values | {symbols.S: rows}))
    if what == "root norm":
        rows, width = sizes
        terms = said(llama(width=width), eb.Setup(batch=1, sequence=rows, **pure), gpu)
        return terms["norm_backward"] + terms["norm_sums"]
    if what == "shared heads":
        batch, heads, keys, sequence, width = sizes
        terms = said(
            llama(heads=heads, kv_heads=keys, head_width=width), eb.Setup(batch=batch, sequence=sequence, **pure), gpu
        )
        return [terms["flash_split"], terms["flash_backward"] + terms["flash_heads"]]
    if what == "visits":
        tokens, visits, experts, width = sizes
        model = llama("mixtral-8x7b", experts=experts, experts_per_token=visits)
        terms = said(model, eb.Setup(batch=1, sequence=tokens, **pure), gpu)
        size = TILES[min(int(gpu.capability[0]), 9)]
        rows = indexed(Integer(tokens * visits), Integer(tokens)).subs({symbols.tile: size})
        products = 2 * [terms["experts_products"]]
        return [terms["experts_sort"], terms["experts_ends"], terms["experts_index"], int(rows), *products]
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["h200", "a100-80gb", "t4", "rtx-4090"])
def test_each_kernel_takes_what_its_term_says(here, capfd, name):
    kinds = ("fp32",) if name == "t4" else ("fp32", "bf16")  # no flash attention in 16 bits before Ampere
    asked = kernel_shapes.asked(kinds)
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


#: Llamas and mixtures: what changes, the setup, which operation's memory decides.
OTHERS = [
    ("llama-3.2-1b", {"heads": 8, "kv_heads": 1, "head_width": 128, "qkv_bias": True},
     {"batch": 1, "sequence": 333, "precision": "bf16-mixed", "checkpointing": "full"}, "flash attention backward"),
    ("llama-3.2-1b", {"heads": 8, "kv_heads": 2, "layers": 3, "width": 512}, {"batch": 4, "sequence": 1000, "attention": "eager"}, "softmax backward"),
    ("mixtral-8x7b", {"layers": 2, "width": 128}, {"batch": 8, "sequence": 2048, "precision": "bf16", "loss": "chunked"}, "visits"),
    ("mixtral-8x7b", {"experts_per_token": 3}, {"batch": 8, "sequence": 1000, "checkpointing": "full", "attention": "eager"}, ""),
    ("mixtral-8x7b", {"vocabulary": 5003}, {"batch": 2, "sequence": 64, "precision": "bf16"}, ""),
]  # fmt: skip


#: Where the peak would stand lower without that memory.
SCRATCHED = ("up bias", "down bias", "flash attention", "flash attention backward")


@pytest.mark.parametrize("name", ["h200", "rtx-4090"])
def test_where_a_kernel_s_own_memory_decides_the_peak(here, name):
    gpu = eb.gpu(name)
    wanted = [(shaped(*sizes).replace(positions=2048), fields, where) for *sizes, fields, where in DECIDED]
    wanted += [(llama(kind, **changes), fields, where) for kind, changes, fields, where in OTHERS]
    with starter(here, gpu) as start, start() as worker:
        for model, fields, where in wanted:
            setup = eb.Setup(optimizer="sgd", **fields)
            predicted, found = eb.budget(model, setup), one(worker, model, setup, gpu, 60.0)[0]
            most, operation = requested(predicted, gpu)
            assert (found.requested, operation.startswith(where)) == (most, True), operation
            assert found.phases == {phase: size + found.workspace for phase, size in predicted.phases.items()}
            assert where not in SCRATCHED or most > predicted.peak + 2 * gpu.cublas_workspace
