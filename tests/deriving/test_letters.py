"""PyTorch's symbolic shapes derive the theory: no term of difference, in letters for every dimension of the model."""

import json
from functools import cache as once

import pytest
import sympy
import torch
from torch import nn
from torch.nn import functional as F

import everybyte as eb
from everybyte.command import main
from everybyte.derivation.lettered import symbol
from everybyte.formulas import bindings
from everybyte.formulas.symbols import SYMBOLS
from everybyte.reference import gpt
from everybyte.step.course import Reading
from everybyte.theory import trace
from everybyte.theory.letters import HELPERS, text

#: Heads are of a multiple of eight, so that their halves are whole.
EIGHTH = sympy.Symbol("d", integer=True, positive=True)
GPT, LLAMA = eb.model("gpt2"), eb.model("llama-3.1-8b", code="reference")
MIXED = eb.Setup(precision="bf16-mixed")
STEPS = {
    "gpt": (GPT, MIXED),
    "phi": (eb.model("phi-3-mini", code="reference"), MIXED),
    "llama": (LLAMA, eb.Setup(precision="bf16")),
    "shared": (LLAMA, eb.Setup()),  # key heads are repeated
    "eager": (LLAMA, eb.Setup(precision="bf16", attention="eager")),
}


@once
def derived(name):
    """A step in letters, derived once."""
    return eb.derive(*STEPS[name], letters="all")


class Sizes:
    """The theory's sizes in other letters."""

    def __init__(self, number):
        self.number = number

    def size(self, piece):
        return sympy.prod([self.number(said) for said in piece.key]).subs(EIGHTH, symbol("D") / 8)

    def times(self, repeat):
        return self.number(text(repeat.times))


def theory(model, setup):
    """The theory's course of the step in the same letters: what lives at each operation, in sympy's."""
    A, D = symbol("A"), 8 * EIGHTH
    values = {s.symbol.name: s.symbol for s in SYMBOLS.values()}
    values |= {
        "A_kv": symbol("A_{kv}"),
        "H": A * D,
        "W": A * D,
        "D": D,
        "N_max": symbol("N"),
        "n_c": 8,
        "n_a": 1,
        "K": 1,
    }
    if model.kv_heads == model.heads:
        values["A_kv"] = A
    said = bindings(None, setup)
    values |= {name: said[SYMBOLS_BY[name]] for name in ("w", "w_s", "c", "m_w", "s_b")}
    names = HELPERS | values
    course = trace(model, setup)

    def number(said):
        found = sympy.sympify(eval(said, {}, names))  # noqa: S307  the theory's own text
        shared = A / symbol("A_{kv}")  # a whole number in every model
        return found.xreplace({sympy.floor(shared): shared})

    reading = Reading(course, Sizes(number))
    return [(operation, dict(zip(course.parts, live, strict=True))) for operation, live in reading.ends()]


#: The theory's text has these letters for the bytes of a number.
SYMBOLS_BY = {
    "w": "weight_bytes", "w_s": "stored_weight_bytes", "c": "compute_bytes", "m_w": "master_bytes", "s_b": "state_bytes",
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", STEPS)
def test_the_machine_derives_the_theory_in_letters(name):
    formula, by_hand = derived(name), theory(*STEPS[name])
    for phase in ("after_forward", "after_backward", "after_step"):
        (live,) = [live for operation, live in by_hand if operation.name == phase]
        instant = formula.instants[formula.moments[phase]]
        for part, said in instant.parts.items():
            assert sympy.expand(said - live.get(part, 0)) == 0, (phase, part)
    moments = {sympy.expand(sum(live.values())) for _, live in by_hand}
    found = [formula.instants[i] for i in formula.highest]
    assert len(found) > 5
    assert {i.total for i in found} <= moments


def test_the_reader_derived_the_same():
    """The formulas that chapter 15 derives by hand are among the instants of the machine's."""
    formula, model = derived("gpt"), GPT
    switches = {SYMBOLS[n].symbol: v for n, v in bindings(model, MIXED).items() if n not in LETTERED}
    A, D = symbol("A"), symbol("D")

    def by_hand(name):
        expression = eb.formula(name).expr.subs(SYMBOLS["parameters"].symbol, eb.formula("parameters").expr)
        widths = {
            SYMBOLS["width"].symbol: A * D,
            SYMBOLS["embedding_width"].symbol: A * D,
            SYMBOLS["kv_heads"].symbol: A,
        }
        return sympy.expand(expression.subs(switches).subs(widths).doit())

    totals = {i.total for i in formula.instants}
    assert by_hand("instant.nll_backward") in totals
    assert sympy.simplify(by_hand("phase.after_forward") - formula.phases["after_forward"]) == 0


LETTERED = {
    "parameters",
    "embedding_width",
    "kv_heads",
    "batch",
    "sequence",
    "layers",
    "width",
    "heads",
    "vocabulary",
    "ffn_width",
    "learned_positions",
    "head_width",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", STEPS)
def test_other_dimensions_are_the_dry_run(name):
    """At dimensions, depths, batches and sequences that nobody looked at."""
    model, setup = STEPS[name]
    hidden = model.replace(
        layers=5, width=112, heads=7, kv_heads=1 if model is LLAMA else 7, head_width=16, embedding_width=112, ffn_width=331,
        vocabulary=1009, positions=333, learned_positions=333 if name == "gpt" else 0,
    )  # fmt: skip
    for b, s in ((2, 2), (3, 77)):
        counted, found = eb.dry_run(hidden, setup.replace(batch=b, sequence=s)), derived(name).at(hidden, b, s)
        assert found == {n: getattr(counted, n) for n in ("peak", "peak_at", "parts", "phases")}


def test_what_does_not_hold_is_refused_by_name():
    formula = derived("gpt")
    with pytest.raises(ValueError, match="2 sequences or more does not hold for B = 1"):
        formula.at(GPT, 1, 8)
    with pytest.raises(ValueError, match="heads of a multiple of 8"):
        formula.at(GPT.replace(width=60, heads=12, head_width=5, embedding_width=60), 2, 8)
    with pytest.raises(ValueError, match="derive.model: tied False"):
        formula.at(GPT.replace(tied=False), 2, 8)
    with pytest.raises(ValueError, match="Setup.sequence: 2048"):
        formula.at(GPT, 2, 2048)
    with pytest.raises(ValueError, match="kv_heads 32 of llama-2-7b; allowed: fewer than heads"):
        derived("llama").at(eb.model("llama-2-7b", code="reference"), 2, 8)
    with pytest.raises(ValueError, match="kv_heads 8 of phi-3-mini; allowed: as many as heads"):
        derived("phi").at(eb.model("phi-3-mini", code="reference").replace(kv_heads=8), 2, 8)
    wide = LLAMA.replace(head_width=256)
    for refused in (lambda: derived("llama").at(wide, 2, 8), lambda: eb.derive(wide, MIXED, letters="all")):
        with pytest.raises(ValueError, match="derive.model: width 4096 of .* allowed: heads by head_width, 8192"):
            refused()
    with pytest.raises(ValueError, match="derive.model: 'gpt2'"):
        derived("gpt").at("gpt2", 2, 8)
    with pytest.raises(ValueError, match="Setup.batch: 0 "):
        derived("gpt").at(GPT, 0, 8)
    for model, setup, said in (
        (eb.model("mixtral-8x7b", code="reference"), eb.Setup(), "allowed: a GPT or a Llama"),
        (eb.model("bert-base"), eb.Setup(), "allowed: a GPT or a Llama"),
        (GPT, eb.Setup(loss="chunked"), "Setup.loss: 'chunked' with letters 'all'; allowed: 'plain'"),
        (GPT, eb.Setup(gpus=8), "Setup.gpus: 8 with letters 'all'; allowed: 1"),
    ):
        with pytest.raises(ValueError, match=said):
            eb.derive(model, setup, letters="all")
    with pytest.raises(ValueError, match="letters"):
        eb.derive(GPT, MIXED, letters="HV")


def test_it_leaves_nothing_behind(state, monkeypatch):
    before = state(), torch.get_default_dtype(), nn.Linear.reset_parameters, nn.LayerNorm.__init__, gpt.math
    monkeypatch.setattr(F, "cross_entropy", lambda *_, **__: pytest.fail.Exception("interrupted"))
    with pytest.raises(BaseException):  # noqa: B017  whatever it is
        eb.derive(GPT, MIXED, letters="all")
    assert (state(), torch.get_default_dtype(), nn.Linear.reset_parameters, nn.LayerNorm.__init__, gpt.math) == before


def test_it_shows_itself():
    formula = derived("llama")
    assert len(repr(formula)) < 200 and "A_{kv}" in str(formula) and "<table>" in formula._repr_html_()
    assert "V" in formula.latex() and formula.as_dict()["letters"]["V"] == "entries of the vocabulary"
    assert {str(s) for s, _ in formula.symbols} == {"B", "S", "L", "A", "A_{kv}", "D", "F", "V"}


def test_the_command_says_it_too(capsys, monkeypatch):
    formula = derived("gpt")
    monkeypatch.setattr(eb, "derive", lambda *_, letters, **__: formula if letters == "all" else None)
    assert main(["derive", "gpt2", "--letters", "all", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["letters"]["F"] == "inner width of the MLP" and "V" in said["latex"]
    assert main(["derive", "gpt2", "--letters", "all"]) == 0
    assert "Holds for 2 sequences or more" in capsys.readouterr().out
