"""What GPUs exchange is drawn to scale, and every GPU of a ring has the same work in every turn."""

import pytest
from matplotlib.patches import Rectangle

import everybyte as eb
from everybyte import draw

WANTED = [12, 4, 2, 2]


def aligned(**how):
    model = eb.model("qwen2.5-0.5b", code="reference")
    step = eb.Setup(batch=1, sequence=1024, precision="bf16-mixed", checkpointing="full", gpus=8, sharding="zero3")
    rollout = eb.Rollout(sequences=8, context=1024, engine=eb.Engine(utilization=0.3, graphs="0.5 GiB"), **how)
    return eb.align("grpo", model, step, eb.gpu("h100-80gb"), rollout=rollout)


FIGURES = {
    "travel": lambda: draw.travel([WANTED] * 2, 2, 64, 32),
    "travel, six": lambda: draw.travel([[900_000] * 6] * 6, 6, 7168, 2048),
    "rounds": draw.rounds,
    "rounds, bytes": lambda: draw.rounds(2, 2**31, 2**30),
    "mask": draw.mask,
    "partners": lambda: draw.partners(eb.Mesh(pipeline=2, context=2, tensor=4), 64),
    "alternation": lambda: draw.alternation(
        {"weights first": aligned(asleep=True), "awake": aligned()}, eb.gpu("h100-80gb").memory
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_its_text_and_stays_on_its_page(name):
    fig = FIGURES[name]()
    assert draw.checked_alt(fig.alt) == fig.alt
    fig.draw_without_rendering()
    for text in fig.axes[0].texts:
        box = text.get_window_extent()
        assert fig.bbox.x0 - 1 <= box.x0 and box.x1 <= fig.bbox.x1 + 1, text


def test_bars_of_rows_are_as_long_as_their_bytes():
    fig = draw.travel([WANTED] * 2, 2, 64, 32)
    widths = [bar.get_width() for bar in fig.axes[0].patches if type(bar) is Rectangle]
    of_a_row, kept = 64 * 2 + 8, 2 * (64 + 4 * 32) + 16
    assert widths[:5] == [10 * 128, 20 * of_a_row, 32 * of_a_row, 32 * kept, 20 * 128]
    assert widths[5:] == [10 * 128, 20 * of_a_row, 8 * of_a_row, 8 * kept, 20 * 128]


def test_what_travels_and_is_saved_is_the_formulas():
    model, setup = (
        eb.model("deepseek-v3"),
        eb.Setup(batch=1, sequence=4096, precision="bf16", gpus=4, mesh=eb.Mesh(expert=4)),
    )
    even = [4096 * 8 // 256] * 256
    fig = draw.travel([even] * 4, 4, model.width, model.expert_width, visits=8)
    sent, came = [bar.get_width() for bar in fig.axes[0].patches if type(bar) is Rectangle][1:3]
    assert sent + came == int(eb.formula("experts.buffers").at(model, setup))


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_in_every_turn_every_gpu_multiplies_as_many_tiles(parts):
    work = {}
    for query in range(2 * parts):
        for key in range(query + 1):
            place = draw.turn_of(parts, query, key)
            work[place] = work.get(place, 0) + (0.5 if query == key else 1)
    assert set(work) == {(gpu, turn) for gpu in range(parts) for turn in range(parts)} and set(work.values()) == {2}
    assert draw.turn_of(parts, 0, 1) is None


def test_the_holders_of_a_gpu_are_its_phases_together():
    one = aligned(asleep=True)
    fig = draw.alternation({"weights first": one})
    outlines = [p for p in fig.axes[0].patches if type(p) is Rectangle and not p.get_fill()]
    tops = {}
    for box in outlines:
        tops[round(box.get_x(), 2)] = max(tops.get(round(box.get_x(), 2), 0), box.get_y() + box.get_height())
    assert list(tops.values()) == pytest.approx([phase.bytes / 2**30 for phase in one.timeline().phases])


def test_a_gpu_talks_to_its_groups_of_the_mesh():
    fig = draw.partners(eb.Mesh(pipeline=2, context=2, tensor=4), 64)
    letters = [text.get_text() for text in fig.axes[0].texts]
    assert [letters.count(letter) - 1 for letter in "TCDP"] == [3, 1, 3, 1]  # one of each is in the legend
    assert letters.count("0") == 1


def test_what_cannot_be_drawn_is_refused():
    for wrong in (
        lambda: draw.travel([[1, 2, 3]] * 2, 2, 8, 8),
        lambda: draw.rounds(5),
        lambda: draw.alternation({}),
        lambda: draw.partners(eb.Mesh(tensor=4), 12),
    ):
        with pytest.raises(ValueError, match=r"travel|rounds|alternation|partners"):
            wrong()
