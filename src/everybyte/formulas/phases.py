"""What a run does beside training: evaluating, loading a checkpoint; and what it takes of the host's memory."""

from .registry import register
from .symbols import B, N_e, P, S, V, m_w, n_f, n_r, n_s, n_w, n_x, s_b, w_s

LOGITS = register("evaluation.logits", N_e * S * V * 4)
JOINED = register("evaluation.joined", 2 * LOGITS.expr)
CHECKPOINT = register("checkpoint", P * (w_s + m_w + n_s * s_b))
FIRST = register("checkpoint.first", n_r * CHECKPOINT.expr)
WEIGHTS = register("host.weights", n_r * P * w_s)
BATCHES = register("host.batches", n_r * n_w * n_f * B * S * n_x * 8)
