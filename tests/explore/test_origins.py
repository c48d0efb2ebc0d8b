"""Where an operation is from: each has its chapter, and of the book's models the function that runs it."""

import ast
import re
from pathlib import Path

import pytest

import everybyte as eb
from everybyte import explore
from everybyte.explore import origins
from everybyte.explore.beside import table
from everybyte.step.course import flat
from everybyte.step.witness import starred
from everybyte.theory import trace

ROOT = Path(__file__).resolve().parents[2]
LLAMA = eb.model("llama-3.2-1b", code="reference")
TOLD = """
import { pure } from "./picture.mjs";
export default ({ spec, state }) => {
  const r = pure.KINDS[spec.kind].compute(spec, state);
  return r.ops.map((op, at) => [...op.slice(0, 3), ...pure.KINDS[spec.kind].origin(spec, r, at)]);
};
"""
OPENED = {
    "step": explore.step,
    "checkpointing": explore.checkpointing,
    "a Llama's": lambda: explore.step(LLAMA),
}


def test_every_chapter_that_is_named_is_there():
    said = table("origins.toml")
    for slug in (row["chapter"] for row in said["rows"]):
        assert (ROOT / "notebooks" / f"{slug}.ipynb").is_file(), slug
    assert all(row.keys() <= {"moment", "part", "owner", "chapter"} for row in said["rows"])


@pytest.mark.parametrize("name", OPENED)
def test_every_operation_that_a_course_can_show_has_a_row(name):
    operations = OPENED[name]().kind.courses.operations
    used = {origins.chapter(o[1], o[2], {part for part, _ in o[3]}) for o in operations}
    assert used == {row["chapter"] for row in table("origins.toml")["rows"]}


def test_every_operation_of_hugging_face_s_code_but_rotary_has_a_row():
    setup = eb.Setup(batch=1, sequence=64, precision="bf16-mixed", checkpointing="full")
    operations = [*flat(trace(eb.model("llama-3.2-1b").replace(layers=4), setup).items)]
    places = [(o.phase, starred(o.owner), {piece.part for piece in o.taken}) for o in operations]
    found = {place[1]: origins.chapter(*place) for place in places}
    assert {owner for owner, chapter in found.items() if not chapter} == {"rotary"}  # which the book does not derive


@pytest.mark.parametrize("model", [eb.catalog.models("reference")["gpt2"], LLAMA], ids=lambda model: model.family)
def test_a_function_that_is_named_is_in_the_reference_s_source(model):
    found = origins.codes(model)
    for owner, said in found.items():
        place, _, name = said.partition(": ")
        file, _, line = place.partition(", line ")
        kind, function = name.split(".")
        source = (ROOT / "src" / "everybyte" / file).read_text(encoding="utf-8")
        if line:
            assert re.search(rf"self\.{owner.rpartition('.')[2]}\b", source.splitlines()[int(line) - 1]), said
        tree = ast.parse(source)
        (owned,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind)
        assert function == "forward" and any(getattr(node, "name", "") == function for node in owned.body), owner
    attention, out = found["blocks.*.attention"], found["blocks.*.attention.out"]
    assert re.sub(", line [0-9]+", "", out) == attention != out and attention != found["blocks.*"]
    assert sum(", line " in said for said in found.values()) > 5
    assert origins.codes(eb.model("llama-3.2-1b")) == {}


def test_the_page_says_where_each_operation_is_from(node):
    explorer = explore.step()
    said = node(TOLD, {"spec": explorer.picture.spec, "state": explorer.state}, picture=explorer.source)
    up = origins.codes(eb.model("gpt2", code="reference"))["blocks.*.mlp.up"]
    assert re.fullmatch("reference/gpt.py, line [0-9]+: MLP.forward", up)
    of = {(name, moment): (slug, code) for name, moment, _, slug, code in said}
    assert of["flash attention", "forward"] == ("18_attention", "reference/gpt.py: Attention.forward")
    assert of["up", "forward"] == ("13_activations", up)
    assert of["log-softmax backward", "loss backward"] == ("14_loss", "reference/gpt.py: Loss.forward")
    assert of["up weight gradient", "backward"] == ("12_gradients_and_optimizers", up)
    assert of["rest", "rest"] == of["root of the variance", "optimizer step"] == ("15_the_step", "")
    assert all(slug for *_, slug, _ in said)


LARGE = """
import { pure } from "./picture.mjs";
export default ({ spec, states }) => states.map((state) => pure.KINDS[spec.kind].large(pure.KINDS[spec.kind].compute(spec, state)));
"""


def test_the_one_number_names_the_operation_of_the_peak(node):
    explorer = explore.step()
    few = explorer.state | explorer.presets["the optimizer wins"]
    said = node(LARGE, {"spec": explorer.picture.spec, "states": [explorer.state, few]}, picture=explorer.source)
    assert said[0][:2] == ["10.54 GiB", " peak, in loss backward: log-softmax backward"]
    assert said[1][1].startswith(" peak, in optimizer step: ")
