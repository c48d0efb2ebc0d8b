"""Exercises of chapter 11: how many parameters, exactly?"""

from fractions import Fraction
from math import ceil, floor

from ...catalog import model
from ...formulas import formula
from ...formulas.symbols import H, L, N, V
from ..asking import parameters
from ..program import Case, small_llamas
from . import answers, program


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


def _counting(m, *, grouped=True, matrices=3, norms=2, tied=True, untied=True, last=1):
    """The answer, or what it would be with so many matrices in the MLP and norms in a block, or with one kind of head for all."""
    attention = 2 * m.width * m.head_width * (m.heads + (m.kv_heads if grouped else m.heads))
    block = attention + matrices * m.width * m.ffn_width + norms * m.width
    tables = 1 if not untied or (tied and m.tied) else 2
    return m.layers * block + tables * m.vocabulary * m.width + last * m.width


ANSWERS = {
    "11.1": answers(
        _padded,
        unpadded=lambda: parameters("gpt2"),
        head=lambda: _padded(tied=False),
        positions=lambda: _padded(learned_positions=0),
        biases=lambda: _padded(qkv_bias=False, out_bias=False, ffn_bias=False),
        last_norm=lambda: _padded(final_norm=False),
        norm_bias=lambda: _padded(norm_bias=False),
    ),
    "11.2": answers(
        _gpt2,
        layers=lambda: _gpt2().subs(L, 1),
        head=lambda: _gpt2() + V * H,
        last_norm=lambda: _gpt2() - 2 * H,
        norms=lambda: _gpt2() - 4 * L * H,
        biases=lambda: _gpt2() - 9 * L * H,
        positions=lambda: _gpt2() - N * H,
    ),
    "11.3": answers(
        lambda: _missed(4096),
        positions=lambda: _missed(0),
        head=lambda: _llama(tied=True),
        mlp=lambda: _llama(gated=False),
        gpt2_mlp=lambda: _llama(gated=False, ffn_width=4 * 4096),
        whole=lambda: parameters("llama-2-7b"),
        calculator=lambda: _box(model("llama-2-7b"), 4096),
    ),
    "11.4": answers(
        lambda: ceil(_layers(2)),
        doubled=lambda: 2 * model("gpt2").layers,
        rounded_down=lambda: floor(_layers(2)),
        added=lambda: ceil(_layers(2)) - model("gpt2").layers,
    ),
    "11.5": answers(
        _mixtral,
        stored=lambda: _mixtral("parameters"),
        routers=lambda: _mixtral() - _router(),
        one_expert=lambda: _mixtral(experts_per_token=1),
        quarter=lambda: Fraction(_mixtral("parameters"), 4),
    ),
    "11.6": answers(
        _checkpoint,
        masks=lambda: _checkpoint(masks=False),
        states=lambda: _checkpoint(states=0),
        weights_alone=lambda: _checkpoint(states=0, masks=False),
        one_state=lambda: _checkpoint(states=1),
    ),
    "11.7": program(_counting, _llamas, grouped=False, matrices=2, tied=False, untied=False, last=0, norms=0),
}
