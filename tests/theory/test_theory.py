"""The theory without PyTorch: what is taken is given back, short traces stand for long ones, and text for numbers."""

from itertools import islice
from random import Random

import grid
import pytest

import everybyte as eb
from everybyte.ask.choices import DTYPE_BYTES
from everybyte.step.course import Repeat, flat
from everybyte.theory import (
    PARTS,
    SHARED_PARTS,
    autograd,
    course,
    letters,
    operations,
    schedule,
    structure,
    tensors,
    trace,
)
from everybyte.theory.budget import not_derived
from everybyte.theory.compiled import compiled
from everybyte.theory.letters import Letter, factor, least, over, product, text, up


def drawn(seeds, layers=(1, 2, 3, 6, 9)):
    """(seed, model, setup) of steps that are derived, with more blocks and batches than a trace tells apart."""
    for seed in seeds:
        model, setup, _ = grid.everything(seed)
        draw = Random(seed).choice
        model = model.replace(layers=draw(layers))
        if setup.checkpointing == "every-k":
            setup = setup.replace(checkpoint_every=draw(range(1, model.layers + 1)))
        if setup.accumulation > 1:
            setup = setup.replace(accumulation=draw([2, 3, 6]))
        try:
            setup.check_model(model)
        except ValueError:
            continue
        if not_derived(model, setup) is None:
            yield seed, model, setup


def whole(model, setup, monkeypatch):
    """The course of a step of which every block, segment, chunk and batch is traced."""
    with monkeypatch.context() as patch:
        patch.setattr(schedule.Loop, "of", classmethod(lambda cls, number, *_: cls(int(number), 1, -1)))
        patch.setattr(structure, "_COURSES", type(structure._COURSES)())
        return trace(model, setup)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("start", range(0, 40, 8))
def test_a_short_trace_stands_for_a_whole_one(start, monkeypatch):
    for _, model, setup in drawn(range(start, start + 8)):
        values = letters(model, setup, 512)
        found = trace(model, setup).at(values, 512).budget()
        assert found == whole(model, setup, monkeypatch).at(values, 512).budget(), (model, setup)


def test_read_and_compiled_a_course_says_the_same():
    """What is asked often is compiled, for every model and setup of its structure; what is asked a few times is read."""
    for _, model, setup in drawn(range(40, 52)):
        found = trace(model, setup)
        for rounding in (1, 512):
            values = letters(model, setup, rounding)
            said, (peak, at, parts, marks, step) = (
                found.at(values, rounding).budget(),
                compiled(found)(k=rounding, **values),
            )
            assert (said.peak, said.peak_at, said.step) == (peak, course.PEAKS[at], step)
            assert tuple(said.parts.values()) == parts
            assert {name: tuple(live.values()) for name, live in said.moments.items()} == marks


def test_the_random_steps_repeat_what_is_not_traced():
    steps = [(model, setup) for _, model, setup in drawn(range(40))]
    assert all(list(flat(trace(*step).items)) for step in steps)
    repeats = [any(isinstance(item, Repeat) for item in trace(*step).items) for step in steps]
    assert sum(repeats) > 10


def test_what_a_step_takes_it_gives_back():
    """After a step stand its gradients, the last batch, the loss and what stood before: by part, to the byte."""
    whole = 0
    for _, model, setup in islice(drawn(range(100, 160)), 30):
        moments = trace(model, setup).budget(letters(model, setup)).moments
        rest, after = moments["rest"], moments["after_step"]
        tokens = 8 * setup.batch * setup.sequence
        loss = tokens + letters(model, setup)["w"] * (3 if setup.accumulation > 1 else 1)
        for part in (*PARTS, *(SHARED_PARTS if setup.distributed else ())):
            expected = {"activations": tokens, "loss": loss}.get(part, rest[part])
            if part != "gradients":
                assert after[part] == expected, (part, model, setup)
        if setup.distributed or setup.master_gradients != "bf16":
            assert after["gradients"] >= rest["gradients"]
        else:  # each weight's, and of nothing else
            whole += 1
            assert rest["gradients"] == 0
            assert after["gradients"] == model.parameters * DTYPE_BYTES[setup.dtypes.weights], (model, setup)
    assert whole > 2


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_what_backward_makes_for_itself_is_no_activation(checkpointing):
    """At most the gradients of three tensors as wide as the MLP and of one as wide as the model, recomputed or not; none between phases."""
    model = eb.model("llama-3.2-1b", code="reference").replace(layers=4, vocabulary=64)
    setup = eb.Setup(batch=2, sequence=512, precision="bf16", checkpointing=checkpointing)
    budget, counted = eb.budget(model, setup), eb.dry_run(model, setup)
    for witness in (budget, counted):
        assert max(witness.timeline()["transient"]) == 2 * 512 * 2 * (3 * 8192 + 2048)
    assert not any(parts["transient"] for parts in budget.moments.values())
    more = max(counted.timeline()["activations"]) - budget.moments["after_forward"]["activations"]
    assert (more > 0) == (checkpointing == "full")


def test_a_tensor_that_somebody_still_holds_is_noticed(monkeypatch):
    """The same check finds a planted leak."""
    held, plain = [], operations.linear

    def leaking(x, *args):
        held.append(x)
        return plain(x, *args)

    monkeypatch.setattr(operations, "linear", leaking)
    monkeypatch.setattr(structure, "_COURSES", type(structure._COURSES)())
    model, setup = eb.model("gpt2"), eb.Setup(batch=2, sequence=64)
    found = trace(model, setup).budget(letters(model, setup)).moments["after_step"]
    assert found["activations"] > 8 * 2 * 64


@pytest.mark.parametrize(
    ("what", "where", "name"),
    [
        ("gradients that meet are always added in a new tensor", autograd, "is_dense"),
        ("no shape is ever read as another", tensors, "viewed"),
    ],
)
def test_planted_errors_change_what_a_step_takes(what, where, name, monkeypatch):
    model = grid.any_llama("planted", Random(5).choice).replace(
        experts=0, experts_per_token=0, expert_width=0, tied=True
    )
    setup = eb.Setup(batch=2, sequence=16, attention="eager", precision="bf16-mixed")
    right = eb.budget(model, setup).timeline()
    monkeypatch.setattr(where, name, lambda *_: None)
    monkeypatch.setattr(structure, "_COURSES", type(structure._COURSES)())
    assert eb.budget(model, setup).timeline() != right, what


def test_every_size_says_in_letters_what_it_is_in_numbers():
    for _, model, setup in islice(drawn(range(200, 230), layers=(2,)), 12):
        found = trace(model, setup)
        amounts = found.at(letters(model, setup)).amounts
        pieces = (piece for o in flat(found.items) for piece in (*o.taken, *o.freed))
        for piece in (*found.rest, *pieces):
            if "Q" not in text(piece.numbers):
                assert amounts.size(piece) == int(piece.numbers) * int(piece.width) * int(piece.count), piece.key


def test_a_course_serves_other_numbers_of_its_structure():
    model, setup = eb.model("gpt2"), eb.Setup(batch=8, sequence=1024)
    first = trace(model, setup)
    other = model.replace(width=1024, heads=16, layers=24), setup.replace(batch=3, sequence=777)
    assert trace(*other) is first
    assert trace(model, setup.replace(batch=1)) is not first
    assert trace(model.replace(heads=1), setup) is not first


def test_letters_multiply_and_add_as_numbers():
    b, s = Letter(3, "B"), Letter(5, "S")
    numbers = {"B": 3, "S": 5} | course.HELPERS
    found = [
        b * s,
        b + s,
        2 * (b + s),
        (b + 1) * s,
        up(b * s, 4),
        over(b * s * 2, 2),
        least(b, s),
        product([b, s, 2]),
        b * s - b,
    ]
    for letter in found:
        assert eval(text(letter), {}, numbers) == int(letter)  # noqa: S307
        assert eval(f"7*{factor(letter)}", {}, numbers) == 7 * int(letter)  # noqa: S307


def test_the_first_budget_needs_neither_sympy_nor_torch():
    import subprocess
    import sys

    code = "import sys, everybyte as eb; eb.budget(eb.model('gpt2'), eb.Setup()); assert not {'sympy', 'torch'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
