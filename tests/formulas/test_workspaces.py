"""Workspaces: what the kernels' sources say, worked by hand; none of it is in the budget, which counts tensors."""

import pytest

import everybyte as eb
from everybyte.command import main
from everybyte.formulas import registry, symbols, workspaces
from everybyte.formulas.workspaces import (
    COUNTED,
    MULTIPROCESSORS,
    TERMS,
    flash_splits,
    requested,
    said,
    summed,
    table,
)
from everybyte.step.course import KERNELS

LLAMA, MIXTRAL = (
    eb.model("llama-3.2-1b", code="reference").replace(name="x", layers=1),
    eb.model("mixtral-8x7b", code="reference"),
)
GPT2, MIXED = eb.model("gpt2"), eb.Setup(precision="bf16-mixed")


def test_every_term_is_registered_with_its_source_and_its_assumption():
    named = {name for name in registry() if name.startswith("workspace.")}
    assert named == {t.name for t in TERMS}
    for term in TERMS:
        assert term.unit == "B" and "PyTorch" in term.source and "an H200 took" in term.assumptions[-1]


def test_none_is_counted_as_a_tensor(capsys):
    assert COUNTED == 0
    assert eb.budget(GPT2, MIXED).parts["workspace"] == COUNTED == eb.dry_run(GPT2, MIXED).parts["workspace"]
    assert main(["budget", "gpt2"]) == 0 and "no tensor: 0" in capsys.readouterr().out
    assert {row[2] for row in table(GPT2, MIXED).rows} == {"no tensor: 0"}


@pytest.mark.parametrize(
    ("gpu", "size"), [("h100-80gb", 32 * 2**20), ("b200", 32 * 2**20), ("a100-80gb", 8_519_680), ("t4", 8_519_680)]
)
def test_cublas(gpu, size):
    assert eb.gpu(gpu).cublas_workspace == size and said(GPT2, MIXED, eb.gpu(gpu))["cublas"] == 2 * size


def test_by_hand():
    # GPT-2, 8 sequences of 1,024: 12 heads of 64, an fp32 query gradient and one sum a row.
    assert said(GPT2, MIXED)["flash_backward"] == 4 * 8 * 1024 * 12 * 64 + 4 * 8 * 12 * 1024
    assert said(GPT2, eb.Setup())["flash_backward"] == 0 == said(GPT2, MIXED)["efficient_backward"]
    # In fp32 the product with its row sums, twice, outweighs the query's gradient in tiles of 64, each with 16 bytes.
    assert said(GPT2, eb.Setup())["efficient_backward"] == 4 * 8 * 1024 * 768 + 2 * 4 * 8 * 12 * 1024
    assert 2 * 4 * 8 * 12 * 1024 > 4 * 8 * 12 * 1024 + 16 * 8 * 12 * 1024 // 64
    # 8,192 tokens in at most 8,192 rows, in segments of ten: 819 + 8,192 partial sums of 768.
    assert said(GPT2, MIXED)["embedding_backward"] == 4 * 768 * 9011 + 8 * (3 * 8192 + 2 * 8192 + 9011) + 16
    assert said(GPT2, MIXED)["norm_backward"] == 0
    many = said(GPT2, eb.Setup(batch=128))
    assert many["norm_backward"] == 2 * 4 * 768 * (32768 // 24) + 4 * 768
    assert said(GPT2, eb.Setup(batch=128), eb.gpu("t4"))["norm_backward"] == 0  # 24 warps keep half of its 40 busy
    few = said(GPT2, eb.Setup(batch=3))
    assert few["embedding_backward"] == 0  # 3,072 tokens take another kernel
    assert few["cublaslt"] == 0


def test_grouped_heads_by_hand():
    # A Llama of 32 query and 8 key heads of 64: two gradients in 16 bits for all 32; no memory-efficient kernel for them.
    assert said(LLAMA, MIXED)["flash_heads"] == 2 * 2 * 8 * 1024 * 32 * 64 and said(GPT2, MIXED)["flash_heads"] == 0
    assert (
        said(LLAMA, eb.Setup())["efficient_backward"]
        == 0
        == said(LLAMA, MIXED.replace(attention="eager"))["flash_heads"]
    )


def test_experts_by_hand():
    # 1,024 tokens visit two of eight experts each: 2,048 numbers of 8 bytes, sorted within a block; 8,192: three more copies.
    assert not {name for name in said(GPT2, MIXED) if name.startswith("experts")}
    one, eight = (said(MIXTRAL, eb.Setup(precision="bf16", batch=b)) for b in (1, 8))
    assert (one["experts_sort"], one["experts_ends"], one["experts_index"]) == (8 * 2048, 1023, 32 * 2048 + 1)
    tiles = -(-16384 // 4608)
    assert eight["experts_sort"] == 3 * 8 * 16384 + 8 * 2048 + 1024 * tiles + 511
    assert eight["experts_index"] == (32 + 2 * 8) * 16384 + 2 * 2048 + 1024 * tiles + 511
    assert one["experts_products"] == 60 * 8 + 512 * 132 and said(MIXTRAL, MIXED)["experts_products"] == 0
    assert said(MIXTRAL, eb.Setup(precision="bf16"), eb.gpu("a100-80gb"))["experts_products"] == 0


def test_heads_and_sequences_that_are_no_whole_tiles():
    odd = eb.Model(name="odd", layers=1, width=300, heads=5, vocabulary=300, positions=1000)
    assert said(odd, MIXED.replace(batch=1, sequence=129))["flash_backward"] == 4 * 5 * 256 * (64 + 1)
    wide = odd.replace(name="wide", width=5 * 130)
    assert said(wide, MIXED.replace(batch=1, sequence=129))["flash_backward"] == 4 * 5 * 256 * (192 + 1)
    assert said(odd, MIXED.replace(batch=1, sequence=129, attention="eager"))["flash_backward"] == 0


# What PyTorch 2.13's CUDA build asked of its allocator on a GPU of 132 multiprocessors that does nothing.


def on_an_h200(outputs, rows):
    """Bytes of the buffer of one sum, and of its semaphores."""
    semaphores = 4 * -(-outputs // 128)
    values = {symbols.multiprocessors: MULTIPROCESSORS, symbols.threads: eb.gpu("h200").threads}
    return int(summed(outputs, rows).subs(values)) - semaphores, semaphores


@pytest.mark.parametrize(
    ("outputs", "rows", "bytes_", "semaphores"),
    [
        (2304, 8192, 139_198_464, 72), (3072, 8192, 138_412_032, 96), (768, 8192, 50_331_648, 24),
        (1280, 8192, 83_886_080, 40), (768, 1365, 8_650_752, 24),
    ],
)  # fmt: skip
def test_a_sum_over_rows(outputs, rows, bytes_, semaphores):
    assert on_an_h200(outputs, rows) == (bytes_, semaphores)


def test_few_rows_are_summed_by_one_block():
    assert summed(768, 1020) == 0 != summed(768, 1021)


def test_scratch_as_it_was_asked_for():
    eight, one = said(GPT2, MIXED), said(GPT2, MIXED.replace(batch=1))
    assert eight["bias_gradient"] == 139_198_464 + 72
    assert (eight["flash_split"], one["flash_split"]) == (0, 12_582_912 + 196_608)
    assert eight["embedding_sort"] == 137_727 and eight["embedding_backward"] == 27_681_792 + 5 * 65_536 + 72_088 + 16
    assert said(GPT2, MIXED, eb.gpu("a100-80gb"))["embedding_sort"] == 138_751
    assert eight["flash_backward"] == 25_165_824 + 393_216
    long = said(GPT2, eb.Setup(batch=128))
    assert long["norm_backward"] == 2 * 4_193_280 + 3072 and long["norm_sums"] == 8_650_752 + 24
    dropped = said(GPT2, MIXED.replace(batch=1, dropout=0.1))
    assert dropped["flash_dropout"] == 16 and dropped["flash_split"] == 0


def test_keys_are_cut_where_few_heads_leave_multiprocessors_idle():
    assert [flash_splits(GPT2, MIXED.replace(batch=b)) for b in (1, 2, 8)] == [4, 1, 1]
    assert flash_splits(GPT2, MIXED.replace(batch=1), multiprocessors=96) == 1
    assert flash_splits(GPT2, MIXED.replace(batch=1, sequence=256)) == 1


def test_what_a_gpu_of_other_size_takes():
    # 118 blocks of threads on an H200, 86 on an RTX 4090, whose multiprocessors hold 1,536 threads; 64 and then 16 bits.
    assert said(GPT2, MIXED, eb.gpu("rtx-4090"))["bias_gradient"] == 86 * 4 * 2304 * 128 + 72
    assert said(GPT2, MIXED, eb.gpu("h200")) == said(GPT2, MIXED)
    unknown = eb.Gpu(memory="24 GiB", multiprocessors=132)  # of no capability that anybody said
    assert said(GPT2, MIXED, unknown) == said(GPT2, MIXED)


def test_a_kernel_s_own_memory_moves_the_peak_where_it_outweighs_what_is_live():
    large, setup = eb.model("gpt2-large"), {"precision": "bf16", "checkpointing": "every-k", "checkpoint_every": 6}
    found = eb.budget(large, eb.Setup(**setup))
    # A sum's 83,886,080 bytes stand where a tensor of just that size stands an operation later; its semaphores do not.
    assert requested(found, eb.gpu("h200")) == (found.peak + 2**26 + 40, "down bias gradient (blocks.5.mlp.down)")
    plain = eb.budget(GPT2, MIXED)
    assert requested(plain, eb.gpu("h200"))[0] == plain.peak + 2**26
    assert requested(plain, eb.gpu("rtx-4090"))[0] == plain.peak + 2 * 8_519_680


@pytest.mark.parametrize(
    ("model", "rounding", "field"),
    [
        (LLAMA.replace(heads=8, kv_heads=1, head_width=64, qkv_bias=True), 1, "Model.kv_heads × Model.head_width"), (GPT2, 512, "requested.rounding"),
        (eb.Model(name="odd", layers=1, width=96, heads=2, vocabulary=300, positions=8), 1, "Model.width"),
        (eb.Model(name="odd", layers=1, width=130, heads=2, vocabulary=300, positions=8), 1, "Model.width"),
    ],
)  # fmt: skip
def test_what_the_terms_do_not_cover_is_refused(model, rounding, field):
    with pytest.raises(ValueError, match=f"^{field}: "):
        requested(eb.budget(model, eb.Setup(batch=1, sequence=8, attention="eager"), rounding), eb.gpu("h200"))


def test_norms_of_many_narrow_heads_are_refused():
    model = LLAMA.replace(qk_norm=True)
    few, many = (eb.budget(model, eb.Setup(batch=1, sequence=s, precision="bf16")) for s in (2048, 4096))
    assert requested(few, eb.gpu("h200"))[0] >= few.peak + 2 * 33_554_432  # 65,536 rows
    with pytest.raises(
        ValueError, match="^Model.head_width: 64, and sums over rows are known for multiples of 4, from 128 on"
    ):
        requested(many, eb.gpu("h200"))


def test_every_kernel_runs_in_some_step_and_takes_what_its_sizes_say():
    gpt, mixtral = eb.model("gpt2"), eb.model("mixtral-8x7b", code="reference")
    there = set()
    for model in (gpt, gpt.replace(fused=False), eb.model("qwen3-8b", code="reference"), mixtral):
        for changes in ({}, {"precision": "bf16"}):
            there |= set(eb.budget(model, eb.Setup(batch=2, sequence=64, **changes)).kernels)
    assert {kernel[0] for kernel in there if kernel} == set(KERNELS) - {"moved"}  # which takes nothing
    heads = 2 * 64 * eb.model("qwen3-8b", code="reference").heads
    assert {("row sum", 3 * 768, 128), ("norm backward", 128, 768, 2), ("norm backward", heads, 128, 1)} <= there
    assert {("table backward", 64, 1024, 768), ("rows backward", 256, 128), ("rows backward", 256, 256)} <= there


def test_positions_beyond_3072_are_sorted_as_tokens_are():
    """The table of positions is an embedding too: its backward takes as much as that of so many tokens."""
    model = GPT2.replace(positions=8192)
    takes = workspaces._scratch(model, eb.Setup(batch=1, sequence=8192), eb.gpu("h200"))
    assert takes(("table backward", 8192, 8192, 768)) > 32 * 8192 > takes(("table backward", 3072, 8192, 768)) == 0
