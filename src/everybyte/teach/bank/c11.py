"""Exercises of chapter 11: how many parameters, exactly?"""

from ...catalog import model
from ...formulas import SYMBOLS, formula
from ..exercise import Exercise

L, H, V, N = (SYMBOLS[name].symbol for name in ("layers", "width", "vocabulary", "learned_positions"))


def _padded(**changes):
    return model("gpt2").replace(vocabulary=50_304, **changes).parameters


def _gpt2():
    return formula("parameters").for_model(model("gpt2"))


EXERCISES = [
    Exercise(
        id="11.1",
        title="The parameters of GPT-2 with its vocabulary padded to 50,304",
        difficulty=1,
        minutes=5,
        unit="parameters",
        answer=_padded,
        mistakes={
            "the vocabulary was not padded": lambda: model("gpt2").parameters,
            "the head was counted apart: it is the token table": lambda: _padded(tied=False),
            "the position table is missing": lambda: _padded(learned_positions=0),
            "the biases of the linear layers are missing": lambda: _padded(
                qkv_bias=False, out_bias=False, ffn_bias=False
            ),
            "the last norm is missing": lambda: _padded(final_norm=False),
            "a norm has a weight and a bias": lambda: _padded(norm_bias=False),
        },
        hints=(
            "Only one tensor changes: which of the model's tables has a row for each entry of the vocabulary?",
            "Each new entry is one row of as many numbers as the model is wide; the head shares that table.",
        ),
    ),
    Exercise(
        id="11.2",
        title="GPT-2's parameters as an expression in L, H, V and N",
        difficulty=2,
        minutes=10,
        accepts="expression",
        answer=_gpt2,
        mistakes={
            "this is one layer's and the rest: the layers L are missing": lambda: _gpt2().subs(L, 1),
            "the head was counted apart: in GPT-2 it is the token table": lambda: _gpt2() + V * H,
            "the last norm is missing": lambda: _gpt2() - 2 * H,
            "the norms of the layers are missing": lambda: _gpt2() - 4 * L * H,
            "the biases of the linear layers are missing": lambda: _gpt2() - 9 * L * H,
            "the position table is missing": lambda: _gpt2() - N * H,
        },
        hints=(
            "Go through one layer: the matrices of attention, the two of the MLP, then everything with one index only.",
            "A layer's matrices hold 4 + 8 squares of the width; its biases and norms hold 9 + 4 vectors of that length.",
        ),
    ),
]
