"""Exercises of chapter 11: how many parameters, exactly?"""

from fractions import Fraction
from math import ceil, floor

from ...formulas.symbols import H, L, N, V
from . import Case, answers, each, formula, model, program, small_llamas

SMALL, MEDIUM, LLAMA, MIXTRAL = map(model, ("gpt2", "gpt2-medium", "llama-2-7b", "mixtral-8x22b"))
GPT2 = formula("parameters").for_model(SMALL)
#: Layers with which GPT-2 holds twice its parameters, before rounding up.
LAYERS = 12 + Fraction(SMALL.parameters, SMALL.replace(layers=13).parameters - SMALL.parameters)
STORED, ACTIVE = (formula(name).at(MIXTRAL) for name in ("parameters", "parameters.active"))


GPT2_MLP = {"gated": False, "ffn_width": 4 * 4096}
UNBIASED = {"qkv_bias": False, "out_bias": False, "ffn_bias": False}


def padded(**changes):
    return SMALL.replace(**{"vocabulary": 50_304} | changes).parameters


def off(term):
    return GPT2 + term


def missed(positions=4096, **changes):
    """Parameters of Llama 2 7B, or of it with some changes, that GPT-2's formula lacks."""
    box = GPT2.subs({L: LLAMA.layers, H: LLAMA.width, V: LLAMA.vocabulary, N: positions})
    return LLAMA.replace(**changes).parameters - box


def checkpoint(states=2, masks=True):
    """Bytes of data in GPT-2 medium's checkpoint: fp32 weights and Adam states, its masks, a step counter a tensor."""
    m, tensors = MEDIUM, 12 * MEDIUM.layers + 4
    return 4 * m.parameters * (1 + states) + 4 * m.layers * m.positions**2 * masks + 4 * tensors * (states > 0)


def llamas():
    return [Case(m.name, (m,), m.parameters) for m in small_llamas(11, 20)]


def counting(m, *, grouped=True, matrices=3, norms=2, tied=True, untied=True, last=1):
    attention = 2 * m.width * m.head_width * (m.heads + (m.kv_heads if grouped else m.heads))
    block = attention + matrices * m.width * m.ffn_width + norms * m.width
    tables = 1 if not untied or (tied and m.tied) else 2
    return m.layers * block + tables * m.vocabulary * m.width + last * m.width


ANSWERS = {
    "11.1": answers(
        padded, vocabulary=50_257, tied=False, learned_positions=0, final_norm=False, norm_bias=False, biases=UNBIASED
    ),
    "11.2": answers(
        GPT2,
        layers=GPT2.subs(L, 1),
        **each(off, head=V * H, last_norm=-2 * H, norms=-4 * L * H, biases=-9 * L * H, positions=-N * H),
    ),
    "11.3": answers(
        missed(),
        **each(missed, positions=0, head={"tied": True}, mlp={"gated": False}, gpt2_mlp=GPT2_MLP),
        whole=LLAMA.parameters,
        calculator=LLAMA.parameters - missed(),
    ),
    "11.4": answers(ceil(LAYERS), doubled=2 * 12, rounded_down=floor(LAYERS), added=ceil(LAYERS) - 12),
    "11.5": answers(
        ACTIVE,
        stored=STORED,
        routers=ACTIVE - MIXTRAL.layers * MIXTRAL.width * MIXTRAL.experts,
        one_expert=formula("parameters.active").at(MIXTRAL.replace(experts_per_token=1)),
        quarter=Fraction(STORED, 4),
    ),
    "11.6": answers(
        checkpoint, masks=False, states=0, weights_alone={"states": 0, "masks": False}, one_state={"states": 1}
    ),
    "11.7": program(counting, llamas, grouped=False, matrices=2, tied=False, untied=False, last=0, norms=0),
}
