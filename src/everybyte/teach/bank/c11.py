"""Exercises of chapter 11: how many parameters, exactly?"""

from fractions import Fraction
from math import ceil, floor

from ...catalog import model
from ...formulas import SYMBOLS, formula
from ..exercise import Exercise
from ..program import Case, Program, small_llamas

L, H, V, N = (SYMBOLS[name].symbol for name in ("layers", "width", "vocabulary", "learned_positions"))


def _padded(**changes):
    return model("gpt2").replace(vocabulary=50_304, **changes).parameters


def _gpt2():
    return formula("parameters").for_model(model("gpt2"))


def _box(m, positions):
    """The formula of GPT-2's architecture, with the dimensions of a model of another."""
    return _gpt2().subs({L: m.layers, H: m.width, V: m.vocabulary, N: positions})


def _missed(positions):
    llama = model("llama-2-7b")
    return llama.parameters - _box(llama, positions)


def _llama(**changes):
    return model("llama-2-7b").replace(**changes).parameters - _box(model("llama-2-7b"), 4096)


def _layers(times):
    """The fewest layers with which GPT-2 holds `times` its parameters, as an exact quotient before rounding up."""
    gpt2 = model("gpt2")
    block = gpt2.replace(layers=gpt2.layers + 1).parameters - gpt2.parameters
    return gpt2.layers + Fraction((times - 1) * gpt2.parameters, block)


def _mixtral(name="parameters.active", **changes):
    return formula(name).at(model("mixtral-8x22b").replace(**changes))


def _router():
    m = model("mixtral-8x22b")
    return m.layers * m.width * m.experts


def _checkpoint(states=2, masks=True):
    """Bytes of data in GPT-2 medium's checkpoint: fp32 weights and Adam states, its masks, a step counter a tensor."""
    m = model("gpt2-medium")
    tensors = 12 * m.layers + 4
    return 4 * m.parameters * (1 + states) + 4 * m.layers * m.positions**2 * masks + 4 * tensors * (states > 0)


def _llamas():
    return [Case(m.name, (m,), m.parameters) for m in small_llamas(11, 20)]


def _counting(grouped=True, matrices=3, norms=2, tied=True, untied=True, last=1):
    """What it would be with so many matrices in the MLP and norms in a block, or with one kind of head for all."""

    def parameters_of(m):
        attention = 2 * m.width * m.head_width * (m.heads + (m.kv_heads if grouped else m.heads))
        block = attention + matrices * m.width * m.ffn_width + norms * m.width
        tables = 1 if not untied or (tied and m.tied) else 2
        return m.layers * block + tables * m.vocabulary * m.width + last * m.width

    return parameters_of


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
    Exercise(
        id="11.3",
        title="What GPT-2's formula misses of Llama-2-7B",
        difficulty=2,
        minutes=10,
        unit="parameters",
        answer=lambda: _missed(4096),
        mistakes={
            "this leaves out the position table: the calculator counts one, of 4,096 rows": lambda: _missed(0),
            "the head is missing: Llama's is a table of its own": lambda: _llama(tied=True),
            "Llama's MLP has three matrices": lambda: _llama(gated=False),
            "this is Llama with GPT-2's MLP, two matrices of four times the width": lambda: _llama(
                gated=False, ffn_width=4 * 4096
            ),
            "this is the whole count": lambda: model("llama-2-7b").parameters,
            "this is what the calculator says": lambda: _box(model("llama-2-7b"), 4096),
        },
        hints=(
            "Put L = 32, H = 4,096, V = 32,000, N = 4,096 in GPT-2's formula, and the same with F = 11,008 in Llama's.",
            "The head and the MLP are counted too small, the positions, biases and norms too large; add up with signs.",
        ),
    ),
    Exercise(
        id="11.4",
        title="The fewest layers with which GPT-2 holds at least twice its parameters",
        difficulty=1,
        minutes=5,
        unit="layers",
        answer=lambda: ceil(_layers(2)),
        mistakes={
            "twice the layers doubles the blocks, but not the tables": lambda: 2 * model("gpt2").layers,
            "with these the count is not yet twice as large": lambda: floor(_layers(2)),
            "these are the layers to add: say how many there are then": lambda: ceil(_layers(2)) - model("gpt2").layers,
        },
        hints=(
            "Everything outside the blocks stays as it is: how many parameters does one more block bring?",
            "Divide the whole count by one block's, round up, and add that to the twelve layers there are.",
        ),
    ),
    Exercise(
        id="11.5",
        title="The parameters of Mixtral-8x22B that one token meets",
        difficulty=3,
        minutes=12,
        unit="parameters",
        answer=_mixtral,
        mistakes={
            "these are all that are stored": lambda: _mixtral("parameters"),
            "the routers are missing: every token asks them": lambda: _mixtral() - _router(),
            "a token visits two experts in a layer, not one": lambda: _mixtral(experts_per_token=1),
            "this is a quarter of what is stored: only the experts are two of eight": lambda: Fraction(
                _mixtral("parameters"), 4
            ),
        },
        hints=(
            "From all that is stored, take away the experts that a token does not visit. How large is one expert?",
            "One expert is three matrices of 6,144 by 16,384; six of eight stay away, in each of 56 layers.",
        ),
    ),
    Exercise(
        id="11.6",
        title="The data in a checkpoint of GPT-2 medium, saved as nanoGPT saves it",
        difficulty=2,
        minutes=8,
        unit="GiB",
        decimals=2,
        answer=_checkpoint,
        mistakes={
            "the causal masks are missing: one a layer": lambda: _checkpoint(masks=False),
            "these are the weights and masks alone: Adam's two states are saved too": lambda: _checkpoint(states=0),
            "these are the weights alone": lambda: _checkpoint(states=0, masks=False),
            "Adam has two states": lambda: _checkpoint(states=1),
        },
        hints=(
            "Four bytes a number. For each parameter three numbers are saved; what else has the size of a matrix?",
            "Twelve bytes a parameter, and a mask of 1,024 by 1,024 fp32 numbers for each of the 24 layers.",
        ),
    ),
    Program(
        id="11.7",
        title="A function for the parameters of any Llama",
        difficulty=2,
        minutes=10,
        call="parameters_of(model)",
        cases=_llamas,
        answer=_counting,
        mistakes={
            "keys and values have fewer heads than queries": lambda: _counting(grouped=False),
            "a gated MLP has three matrices": lambda: _counting(matrices=2),
            "a tied head adds nothing": lambda: _counting(tied=False),
            "an untied head is a second table": lambda: _counting(untied=False),
            "the norm after the last block is missing": lambda: _counting(last=0),
            "each block has two norms, of one vector each": lambda: _counting(norms=0),
        },
        hints=(
            "The chapter's box for a Llama, with numbers for letters; and the second table only where the head is not tied.",
            "A block: 2 H D (A + A_kv), 3 H F, and 2 H for its norms. Then the tables, V H each, and H for the last norm.",
        ),
    ),
]
