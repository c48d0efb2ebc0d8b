"""Experts on several GPUs: their weights, the rows that come and go, and what a mixture keeps of them."""

from sympy import ceiling

from ..rules import formulas as rows
from .registry import register
from .symbols import B, E, E_p, E_t, F_e, H, L_m, S, rho, w, w_s

_CHAPTER = "35_experts_and_context"
_GSHARD = "Lepikhin et al. 2020, arXiv:2006.16668, section 3.1"
_HERE = "reference/mesh/experts.py, read off `theory.expert_parallel`"
_SENT = B * S * E_t
_CAME = ceiling(rho * _SENT)
_LEAVES = (E_p - 1) / E_p


_ROUTED = "rho times the rows that it sends come to a GPU: 1 where routers are balanced, E_p where all rows of all GPUs come to this one"
WEIGHTS = register(
    "experts.weights", "the experts' matrices on one GPU, all layers", 3 * L_m * E / E_p * F_e * H * w_s, "B",
    source=_GSHARD, chapter=_CHAPTER, assumptions=("three matrices an expert, as Mixtral's", "E_p divides E"), refuses=rows.SHARDED,
)  # fmt: skip
ROWS = register(
    "experts.rows", "rows that come to one GPU's experts", _CAME, "",
    source=_GSHARD, chapter=_CHAPTER, assumptions=("every token visits E_t experts, none is dropped", _ROUTED),
)  # fmt: skip
BUFFERS = register(
    "experts.buffers", "what is sent and what comes, while it travels: rows, and whom each visits",
    (_SENT + _CAME) * (H * w + 8), "B",
    source=_HERE, chapter=_CHAPTER, assumptions=("both live at once: NCCL keeps what it sends until what comes is waited for", _ROUTED),
    refuses=rows.CAST,
)  # fmt: skip
KEPT = register(
    "experts.kept", "what one mixture keeps for backward, on one GPU",
    _CAME * (w * (H + 4 * F_e) + 16) + _SENT * (w * H + 40) + 4 * B * S * (1 + E) + 4 * E / E_p, "B",
    source=_HERE, chapter=_CHAPTER,
    assumptions=(
        "of a row that came: itself, gate and up, the gate's activation, their product, and two places; of one sent: what came back, "
        "three places, its expert and its weight twice; of a token: all its scores and their sum",
        _ROUTED,
    ),
    refuses=rows.CAST,
)  # fmt: skip
SENT = register(
    "experts.sent", "bytes that one GPU sends to others for one mixture, forward and backward",
    (2 * (_SENT + _CAME) * H * w + 8 * _SENT) * _LEAVES, "B",
    source=_HERE, chapter=_CHAPTER,
    assumptions=("one row of E_p stays where it is", "forward runs once: checkpointed blocks send once more", _ROUTED),
    refuses=rows.CAST,
)  # fmt: skip
