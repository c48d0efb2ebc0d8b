"""One program on two machines: the reference's source, on PyTorch and on the theory's tape."""

import importlib
from contextlib import suppress
from pathlib import Path

import grid
import pytest
from small_decoders import small

import everybyte as eb
from everybyte import reference
from everybyte.catalog.decoders import DECODERS
from everybyte.theory import inference, programs, stand_in, structure
from everybyte.theory.budget import not_derived
from everybyte.theory.titles import TITLES, Naming

SOURCES = Path(reference.__file__).parent
TINY = eb.Model(name="tiny", layers=2, width=16, heads=2, vocabulary=64, positions=32)
#: Lines of a reference that are changed: what they say before, and after.
PLANTED = {
    "a product that is saved": ("return x + self.mlp(self.norm2(x))", "return x + self.mlp(self.norm2(x)) * x"),
    "logits in fp32": (
        "logits.view(-1, logits.size(-1)), targets",
        "logits.view(-1, logits.size(-1)).float(), targets",
    ),
    "a variable that lives longer": ("scores = scores.masked_fill(", "scores = (before := scores).masked_fill("),
}


def planted(before, after, monkeypatch):
    """Have both machines run a GPT of which a line is another."""
    text = (SOURCES / "gpt.py").read_text(encoding="utf-8")
    assert text.count(before) == 1
    text = text.replace(before, after)
    real = importlib.util.module_from_spec(importlib.util.find_spec("everybyte.reference.gpt"))
    exec(compile(text, "gpt.py", "exec"), vars(real))
    monkeypatch.setitem(reference.FAMILIES, "gpt", real.GPT)
    tape = programs.running("gpt", compile(text, "gpt.py", "exec"))
    monkeypatch.setattr(programs, "family", lambda name: tape.GPT)
    monkeypatch.setattr(structure, "_COURSES", type(structure._COURSES)())


@pytest.mark.parametrize("line", PLANTED)
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16"])
def test_what_is_changed_in_the_reference_is_changed_in_both_witnesses(line, precision, monkeypatch):
    setup = eb.Setup(batch=4, sequence=32, attention="eager", precision=precision)
    usual = eb.budget(TINY, setup)
    before = usual.timeline()
    planted(*PLANTED[line], monkeypatch)
    found, trace = eb.budget(TINY, setup), eb.dry_run(TINY, setup)
    assert found.peak == trace.peak and found.parts == trace.parts and found.phases == trace.phases
    if line == "a variable that lives longer":  # until the function returns: seen at an instant of forward
        assert found.timeline() != before
    elif line != "logits in fp32" or precision != "fp32":
        assert found.peak > usual.peak


def test_every_operation_has_a_title_and_every_title_an_operation(monkeypatch):
    seen, untitled, call = set(), set(), Naming.__call__

    def noted(self, operation, code):
        where, turn = code.co_qualname.partition(".<locals>")[0], None
        turn = self.counts[where, operation]
        known = TITLES.get(where, {}).get(operation, ())
        (seen if turn < len(known) else untitled).add((where, operation))
        return call(self, operation, code)

    monkeypatch.setattr(Naming, "__call__", noted)
    monkeypatch.setattr(structure, "_COURSES", type(structure._COURSES)())
    for kind in (
        grid.saving,
        grid.llama,
        grid.one_function,
        grid.shared,
        grid.visited,
        grid.ring,
        grid.swapped,
        grid.divided,
        grid.staged,
    ):
        for seed in range(24):
            if (drawn := kind(seed)) and not_derived(*drawn[:2]) is None:
                with suppress(ValueError):  # refused
                    eb.budget(*drawn[:2])
    for how in (("ppo", None), ("grpo", None), ("value", None), ("dpo", "before"), ("dpo", "after")):
        eb.budget(eb.Objective(TINY, *how), eb.Setup(batch=2, sequence=8))
    inference._course.cache_clear()
    for kind in DECODERS:
        for seed in range(12):
            model = small(kind, seed)
            for attention in ("flash", "eager"):
                with suppress(ValueError):  # not derived
                    setup = eb.Setup(batch=2, sequence=8, attention=attention, dropout=0.1)
                    eb.budget(model.replace(code="transformers", window=min(model.window, 4)), setup)
            for asked in ((8,), (64,), (1, 64), (8, 0, None, 80), (1, 64, None, 80)):
                with suppress(ValueError):  # refused
                    inference.course(model, inference.letters(model, 2, *asked))
    assert not untitled
    everything = {(where, operation) for where, row in TITLES.items() for operation in row}
    assert everything - seen <= {("Attention.forward", "dropout")}


def test_an_operation_that_the_tape_has_not_is_refused_by_name(monkeypatch):
    planted(
        "return F.dropout(self.out(y), self.dropout, self.training)", "return F.hardswish(self.out(y))", monkeypatch
    )
    with pytest.raises(NotImplementedError, match=r"^torch\.nn\.functional\.hardswish: the tape has no such operation"):
        eb.budget(TINY, eb.Setup(batch=1, sequence=8))
    planted(
        "return F.dropout(self.out(y), self.dropout, self.training)",
        "return F.pad(self.out(y), (0, 1), 0)",
        monkeypatch,
    )
    with pytest.raises(NotImplementedError, match=r"^pad: its backward is not on the tape"):
        eb.budget(TINY, eb.Setup(batch=1, sequence=8))
    planted("return F.dropout(self.out(y), self.dropout, self.training)", "return self.out(y).erf()", monkeypatch)
    with pytest.raises(AttributeError, match="'erf'"):
        eb.budget(TINY, eb.Setup(batch=1, sequence=8))


def test_no_torch_is_imported():
    for name in ("gpt", "llama", "mixtral", "mesh.mixture", "mesh.stages"):
        assert programs.source(name).torch is stand_in.torch
