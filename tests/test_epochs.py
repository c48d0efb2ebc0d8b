"""An epoch of a data set's lengths: the batches that collators make, one allocator that serves them, and what is refused."""

import json
from itertools import accumulate
from pathlib import Path
from random import Random

import pytest
import ran

import everybyte as eb
from everybyte.allocator import Request, play_epoch
from everybyte.ask.lengths import Collator, Lengths
from everybyte.command import main
from everybyte.theory.budget import Shapes, shaped

ROOT = Path(__file__).resolve().parents[1]
SMALL = eb.Model(name="small", layers=2, width=256, heads=4, vocabulary=5003, positions=2048)
SETUP = eb.Setup(batch=4, sequence=1024, precision="bf16")
LENGTHS = [min(1024, int(Random(seed).lognormvariate(5.5, 0.8)) + 1) for seed in range(400)]
#: Two layers of Llama 3.2 1B, whose logits alone are 500 KB a token.
LLAMA = eb.model("llama-3.2-1b").replace(layers=2, name="two layers")
LONG, MIXED = (
    SETUP.replace(sequence=2048),
    [min(2048, int(Random(seed).lognormvariate(5.8, 0.8)) + 16) for seed in range(160)],
)


def batches(lengths, **said):
    steps = Collator(**{"collate": "pad", "order": "given", "batch": 2, "longest": 100} | said).steps(Lengths(lengths))
    return [[(b.batch, b.sequence, b.tokens) for b in step] for step in steps]


@pytest.mark.parametrize(
    "said, expected",
    [
        ({}, [[(2, 30, 40)], [(2, 100, 140)], [(1, 5, 5)]]),
        ({"pad_to": 64}, [[(2, 64, 40)], [(2, 128, 140)], [(1, 64, 5)]]),
        ({"pad_to": (32, 100)}, [[(2, 32, 40)], [(2, 100, 140)], [(1, 32, 5)]]),
        ({"collate": "flatten"}, [[(1, 40, 40)], [(1, 140, 140)], [(1, 5, 5)]]),
        ({"collate": "tokens", "tokens": 100}, [[(2, 30, 40)], [(1, 40, 40)], [(1, 100, 100)], [(1, 5, 5)]]),
        ({"collate": "pack", "batch": 1, "longest": 90}, [[(1, 90, 90)], [(1, 90, 90)]]),
        ({"collate": "bins", "batch": 1, "order": "descending"}, [[(1, 100, 100)], [(1, 85, 85)]]),
        ({"order": "descending"}, [[(2, 100, 140)], [(2, 30, 40)], [(1, 5, 5)]]),
        ({"accumulation": 2}, [[(2, 30, 40), (2, 100, 140)]]),
    ],
)
def test_what_a_collator_makes(said, expected):
    """Ten, thirty, forty tokens, one of 120 that is cut to 100, and five; for packing 205 in all, of which 180 fill rows of 90."""
    lengths = [10, 30, 40, 120, 5]
    assert batches(lengths, **said) == expected


def test_largest_first_and_grouped():
    plain, first = (
        batches(LENGTHS, order=order, longest=1024, accumulation=2) for order in ("random", "largest-first")
    )
    assert sorted(map(sorted, plain)) == sorted(map(sorted, first))  # the same steps
    assert first[0][0][1] == max(LENGTHS) and all(step[0][1] >= step[1][1] for step in first)
    grouped = [b for (b,) in batches(LENGTHS, order="grouped", longest=1024)]
    assert (
        grouped[0][1] == max(LENGTHS)
        and sum(b * s - t for b, s, t in grouped)
        < sum(b * s - t for ((b, s, t),) in batches(LENGTHS, longest=1024)) / 4
    )


@pytest.mark.parametrize("text", ["7\n9\n9\n", "[7, 9, 9]", "7 1\n9 2\n", '{"7": 1, "9": 2}'])
def test_a_file_of_lengths(tmp_path, text):
    (tmp_path / "lengths").write_text(text)
    assert Lengths(tmp_path / "lengths").tokens == [7, 9, 9] == Lengths([[1] * 7, [1] * 9, 9]).tokens


@pytest.mark.parametrize(
    "lengths, said, why",
    [
        ([], {}, "lengths.sequences: 0"),
        ([3, 0], {}, "lengths.tokens: 0"),
        ([3, "x"], {}, "'x'; allowed: a number of tokens"),
        (7, {}, "lengths: 7"),
        ({3: 2}, {"order": "given"}, "'given' of a histogram"),
        ([3], {"tokens": 9}, "epoch.tokens: 9 with collate='pad'"),
        ([3], {"collate": "tokens"}, "epoch.tokens: None"),
        (
            [3, 9, 4],
            {"collate": "tokens", "tokens": 8},
            "epoch.tokens: 8, and one row has 9; allowed: as many, or more",
        ),
        ([50], {"pad_to": (8, 16)}, "16 at most, and a row has 50"),
        ([3], {"accumulation": 4}, "1 batches, and a step has 4"),
        ([3], {"collate": "padd"}, "did you mean 'pad'"),
    ],
)
def test_what_does_not_go_together(lengths, said, why):
    with pytest.raises(ValueError, match=why):
        batches(lengths, **said)


def test_steps_of_one_shape_are_those_of_a_budget():
    """Loops whose gradients or outputs stand between steps too, and micro-batches."""
    for changes in (
        {},
        {"loop": "torchtitan"},
        {"loop": "nanogpt"},
        {"accumulation": 3},
        {"loop": "trainer", "accumulation": 2},
    ):
        setup = SETUP.replace(**changes)
        found = eb.epoch(SMALL, setup, [1024] * 4 * 6 * setup.accumulation)
        played = eb.budget(SMALL, setup).on("h100-80gb", steps=6)
        assert found.played.reserved == played.steps[1:] and found.allocated == played.allocated
        if not changes:
            assert found.played.played < 6  # the others change nothing


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "changes",
    [{}, {"loop": "trainer"}, {"gpus": 4, "sharding": "zero3"}, {"checkpointing": "full"}, {"loop": "nanogpt"}],
    ids=str,
)
@pytest.mark.parametrize("model", [SMALL, LLAMA], ids=lambda model: model.name)
def test_other_sizes_ask_for_what_each_step_asks_for(model, changes):
    """The order of requests is found once for steps of one course."""
    setup = SETUP.replace(**changes)
    shapes = Shapes(model, setup, 2**20)
    for batch, sequence in ((3, 77), (2, 17), (5, 200), (1, 33), (4, 1), (2, 999), (1, 1)):
        direct = shaped(model, setup.replace(batch=batch, sequence=sequence), 2**20)
        assert shapes.at(batch, sequence).requests == direct.requests
    assert len(shapes._known) < 6


def test_a_step_that_changes_nothing_is_the_same_again():
    """Played step by step, and where each is known once it leaves the allocator as it found it."""
    steps = [
        [Request(1, n), Request(2, 3 * n), Request(1, 0), Request(2, 0)] for n in (2**20, 5 * 2**20, 30 * 2**20)
    ] * 20
    known = play_epoch([], [(len(s) and s[0].bytes, lambda s=s: s) for s in steps])
    each = play_epoch([], [(number, lambda s=s: s) for number, s in enumerate(steps)])
    assert (known.reserved, known.allocated, known.kept) == (each.reserved, each.allocated, each.kept)
    assert known.played < 10 and each.played == 60


@pytest.fixture(scope="module")
def mixed():
    return eb.epoch(LLAMA, LONG, MIXED)


def test_a_mixture_of_shapes_costs_and_an_order_cures_it(mixed):
    first = mixed.with_(order="largest-first")
    assert mixed.reserved > 1.5 * mixed.allocated and first.reserved < 1.2 * first.allocated
    assert mixed.fragmentation == mixed.reserved - max(mixed.alone.reserved) > 10 * first.fragmentation
    said = {row[0]: row for row in mixed.cures().rows}
    assert said["order largest-first"][1] == eb.units.text(first.reserved)
    assert "expandable_segments:True" in said and mixed.figure().alt.count("most reserved")


def test_the_step_that_dies(mixed):
    """In a byte less than it reserves a step dies, and the allocator has given back what it kept before."""
    memory = mixed.reserved - 2**20
    gpu = eb.Gpu(memory=memory)
    nothing = eb.Headroom(driver=0, context=0, workspace=0, fragmentation=0, nccl=0, other=0)
    again = eb.epoch(LLAMA, LONG, MIXED, gpu=gpu, headroom=nothing)
    assert again.failed is None and again.played.retries[-1] and again.reserved <= memory
    small = eb.Gpu(memory=mixed.allocated - 2**20)
    dies = eb.epoch(LLAMA, LONG, MIXED, gpu=small, headroom=nothing)
    assert dies.failed and f"Step {dies.failed:,}, 4 ×" in dies.why() and len(dies.as_dict()["steps"]) == dies.failed


def test_another_structure_of_what_is_left_is_refused():
    with pytest.raises(ValueError, match="known by its formula alone"):
        eb.epoch(_kept(), SETUP, [8] * 8)


def _kept():
    """A derivation that has lost its model."""
    pytest.importorskip("torch")
    from dataclasses import replace

    return replace(eb.derive(SMALL, SETUP), again=None)


def test_a_derivation_s_requests_are_its_dry_runs():
    pytest.importorskip("torch")
    from everybyte.deriving.ordering import Ordered, _numbered
    from everybyte.dryrun.requests import requests

    formula = eb.derive(SMALL, SETUP)
    asked = [(4, s) for s in (17, 64, 100, 333, 1000)] + [(1, 50), (2, 51)]
    ordered = Ordered(formula, 2**20, True, asked)
    for batch, sequence in (*asked, (3, 777)):
        counted = _numbered(requests(eb.dry_run(SMALL, SETUP.replace(batch=batch, sequence=sequence)), 2**20, True))
        assert ordered.at(batch, sequence).requests == counted
    assert ordered.runs < len(asked)


def test_the_command(tmp_path, capsys):
    (tmp_path / "lengths").write_text("\n".join(map(str, LENGTHS[:40])))
    words = [
        "epoch",
        "gpt2",
        "--lengths",
        str(tmp_path / "lengths"),
        "--batch",
        "4",
        "--precision",
        "bf16",
        "--json",
        "--cures",
    ]
    assert main([*words, "--gpu", "24GiB", "--figure", str(tmp_path / "steps.png")]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["reserved"] == max(step["reserved"] for step in said["steps"]) and len(said["steps"]) == 10
    assert said["cures"][0][""] == "as asked" and (tmp_path / "steps.png").read_bytes()[:4] == b"\x89PNG"
    assert main([*words, "--gpu", "2GiB"]) == 1
    assert json.loads(capsys.readouterr().out)["failed"]


#: Name of a recorded run -> how many of its 150 steps reserve what is played, what it was told, the most bytes between them.
RECORDED = {
    "random": (150, {}, 0),
    "random, rounded": (150, {"configuration": "roundup_power2_divisions:8"}, 0),
    "largest first": (149, {}, 2 * 2**20),  # a small segment, for what kernels take for themselves
    "random, expandable": (145, {"configuration": "expandable_segments:True"}, 20 * 2**20),  # a page
    "random, emptied": (0, {"clear": 10}, 4 * 2**20),
    # Others ran beside it: the driver had between 110 and 111 GB when the allocator gave back what it kept, in step 147.
    "sorted": (149, {"headroom": eb.Headroom(other=38_600_000_000)}, 2 * 2**20),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", RECORDED)
def test_an_h200_reserved_what_is_played(name):
    """`tools/beside/scripts/epoch.py` on an H200: a Llama of three layers, 150 batches of 4 sequences of 16 to 4,096 tokens."""
    equal, said, most = RECORDED[name]
    lengths = ran.lengths()
    if name == "largest first":
        longest = [max(lengths[i : i + 4]) for i in range(0, 600, 4)]
        longest.insert(0, longest.pop(longest.index(max(longest))))
        lengths = [one for one in longest for _ in range(4)]
    lengths = sorted(lengths) if name == "sorted" else lengths
    played = eb.epoch(
        ran.llama(3), eb.Setup(batch=4, sequence=4096, precision="bf16"), lengths, order="given", gpu="h200", **said
    ).played
    seen = ran.scripts()[f"epoch {name}"]["printed"]["FOUND"]
    apart = [abs(step[2] - most) for step, most in zip(seen, accumulate(played.reserved, max), strict=True)]
    assert sum(not difference for difference in apart) >= equal and max(apart) <= most


def test_a_written_batch_with_batches_by_tokens_is_refused(tmp_path, capsys):
    (tmp_path / "lengths").write_text("100\n64\n9\n", encoding="utf-8")
    asked = ["epoch", "gpt2", "--lengths", str(tmp_path / "lengths"), "--collate", "tokens", "--tokens", "200"]
    assert main([*asked, "--batch", "2"]) == 2
    assert "--batch: 2 with --collate tokens, which fills batches by --tokens" in capsys.readouterr().err
    assert main(asked) == 0


@pytest.mark.parametrize("loop", ["plain", "trainer", "nanogpt", "accelerate", "torchtitan"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_steps_of_one_shape_are_a_dry_run_of_that_shape(loop, accumulation):
    """`Trainer` keeps the norm of gradients from step to step, and does not make it beside the optimizer's states too."""
    pytest.importorskip("torch")
    setup = eb.Setup(
        batch=2, sequence=64, precision="bf16-mixed", loop=loop, accumulation=accumulation, optimizer="momentum"
    )
    found = eb.epoch(SMALL, setup, [64] * 8 * accumulation, order="given")
    counted, budgeted = (by(SMALL, setup).on("h100-80gb", "", steps=4) for by in (eb.dry_run, eb.budget))
    assert max(found.played.requested) == counted.requested == budgeted.requested


def test_what_an_epoch_decides_itself_is_refused():
    with pytest.raises(
        ValueError, match=r"Headroom\.fragmentation: 5 of an epoch, which simulates it; allowed: None or 0; other="
    ):
        eb.epoch(SMALL, SETUP, [64] * 8, headroom=eb.Headroom(fragmentation=5))
    with pytest.raises(ValueError, match=r"Setup\.batch: 4 with collate='tokens', .*; allowed: 8, the default"):
        eb.epoch(SMALL, SETUP, [64] * 8, "tokens", tokens=256)


@pytest.mark.parametrize(
    "mesh", [eb.Mesh(pipeline=2), eb.Mesh(pipeline=2, schedule="gpipe"), eb.Mesh(context=2)], ids=str
)
def test_gpus_of_which_one_needs_more_are_refused(mesh):
    setup = SETUP.replace(gpus=2, mesh=mesh, accumulation=2, sharding="zero2" if mesh.context > 1 else "none")
    with pytest.raises(ValueError, match=r"Setup\.mesh: .* of an epoch, .*; allowed: neither; eb\.budget"):
        eb.epoch(SMALL, setup, [64] * 16)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"batch": 3}, r"epoch\.batch: 3 with small; allowed: None"),
        ({"whole": 1}, r"epoch\.whole: 1 is not True or False"),
        ({"pad_to": None}, r"epoch\.pad_to: None is not a whole number"),
        ({"pad_to": 1.5}, r"epoch\.pad_to: 1\.5 is not a whole number"),
        ({"configuration": None}, r"PYTORCH_ALLOC_CONF: None; allowed: text"),
        ({"clear": -1}, r"epoch\.clear: -1 is not a whole number"),
    ],
)
def test_what_is_no_setting_is_refused(said, why):
    with pytest.raises(ValueError, match=why):
        eb.epoch(SMALL, SETUP, [64] * 8, **said)
    if "batch" not in said and "whole" not in said:
        with pytest.raises(ValueError, match=why):
            eb.epoch(SMALL, SETUP, [64] * 8).with_(**said)


def test_another_setting_of_an_epoch_is_as_if_asked_so():
    found, chosen = eb.epoch(SMALL, SETUP, [64] * 8), eb.allocator.settings("expandable_segments:True")
    again = found.with_(configuration=chosen, pad_to=[64, 128])
    assert again.as_dict() == eb.epoch(SMALL, SETUP, [64] * 8, configuration=chosen, pad_to=[64, 128]).as_dict()
