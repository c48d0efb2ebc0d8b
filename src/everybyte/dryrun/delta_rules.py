"""The delta rules of linear attention as flash-linear-attention's Triton kernels run them, on tensors without data.

transformers 5.23 looks for two functions of the package `fla`, and runs PyTorch code of its own where it is not installed
(`integrations/hub_kernels.py`, `use_kernel_func_from_hub_with_fallback`): `chunk_gated_delta_rule`, of Qwen3-Next, Qwen3.5 and OLMo-Hybrid,
and `chunk_kda`, of Kimi Linear. With `fla-core` alone, and no kernels of the Hub, a step changes in nothing else: the convolution stays
PyTorch's until `causal-conv1d` is installed, and the gated norm transformers' own. So these two functions have a stand-in here, which makes,
holds and frees the tensors that the Python around FLA's kernels does.

Sources, of fla-core 0.6.0: `fla/ops/gated_delta_rule/chunk.py` (`ChunkGatedDeltaRuleFunction`), `chunk_fwd.py` and `wy_fast.py`;
`fla/ops/kda/chunk.py` (`ChunkKDAFunction`), `chunk_fwd.py`, `chunk_bwd.py`, `chunk_intra.py` and `wy_fast.py`; of both `ops/common/chunk_delta_h.py`
and `chunk_o.py`, `ops/gla/chunk.py` (`chunk_gla_fwd_o_gk`), `ops/utils/cumsum.py`, `modules/norm/l2norm.py`, `utils/decorators.py`.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.amp import custom_bwd, custom_fwd

from ..ask.setup import Setup
from .cuda import patched, refused
from .tracker import Tracker

#: Tokens in a chunk, and in the parts of its square that Kimi's rule solves in fp32.
CHUNK, PART = 64, 16
#: The widest key of a head that the kernels take (`chunk_gated_delta_rule_fwd_h`).
MOST_WIDTH = 256
#: Numbers of a key that one block reads where it adds up a gradient of decays, with the shared memory of an H100, or with an A100's in 16 bits
#: (`chunk_bwd_dqkwg`); of betas in Kimi's rule (`chunk_kda_bwd_intra`).
WIDE, NARROW = 128, 32


def _held(function):
    """FLA's `input_guard`: inputs are made contiguous, and live until the function returns."""

    def run(ctx, *given):
        contiguous = [one.contiguous() if isinstance(one, Tensor) else one for one in given]
        return function(ctx, *contiguous)

    return run


def _normalized(rows):
    """`l2norm_fwd`: rows of length one, and what each was divided by."""
    return torch.empty_like(rows), rows.new_empty(rows.shape[:-1], dtype=torch.float32)


def _square(key, value, size=CHUNK, dtype=None):
    """A row of each token's square of a chunk, of every value head."""
    return key.new_empty(*value.shape[:-1], size, dtype=dtype or key.dtype)


def _of_heads(key, value, dtype=None):
    """Like keys, of every value head."""
    return _square(key, value, key.size(-1), dtype)


def _states(key, value):
    """A state for each chunk."""
    batch, tokens, heads, width = value.shape
    return key.new_empty(batch, -(-tokens // CHUNK), heads, key.size(-1), width)


def _summed(gradient, key):
    """Of each key head the sum over its value heads."""
    heads, all_heads = key.size(2), gradient.size(2)
    return gradient if heads == all_heads else gradient.unflatten(2, (heads, all_heads // heads)).sum(3)


def _tiles(key, most):
    """Blocks that a key's row is cut into."""
    return -(-key.size(-1) // min(max(1 << (key.size(-1) - 1).bit_length(), 16), most))


@dataclass(frozen=True)
class Rule:
    """One of FLA's functions, with `use_qk_l2norm_in_kernel`, and without `use_gate_in_kernel` and `cu_seqlens`.

    Attributes:
        within: of its forward: (query, key, value, decay, whether the last state is asked for) -> (result, what else is saved, that state).
        back: of its backward: (query, key, value, sums of decays, beta, gradient of the result) -> gradients of the five.
        products: of within and back: products of a chunk's square with keys, with values and with another; of a chunk's keys with a state.
    """

    within: Callable
    back: Callable
    products: tuple[tuple[int, int, int, int], tuple[int, int, int, int]]

    def flops(self, back: bool, key: Tensor, value: Tensor) -> int:
        """Of those products, as if each square were multiplied whole."""
        with_keys, with_values, squares, with_states = self.products[back]
        rows, columns = key.size(-1), value.size(-1)
        chunk = CHUNK * (with_keys * rows + with_values * columns + squares * CHUNK) + with_states * rows * columns
        return 2 * CHUNK * chunk * value.size(0) * value.size(2) * -(-value.size(1) // CHUNK)


class _Delta(torch.autograd.Function):
    """A rule's autograd function: what is saved, and the norms of queries and keys before it and after it."""

    @staticmethod
    @_held
    @custom_fwd(device_type="cuda")
    def forward(ctx, query, key, value, decay, beta, normalize, final, rule, tracker):
        roots = [None, None]
        if normalize:
            query, roots[0] = _normalized(query)
            key, roots[1] = _normalized(key)
        sums = torch.empty_like(decay, dtype=torch.float32)
        result, others, last = rule.within(query, key, value, decay, final)
        ctx.save_for_backward(query, key, value, sums, beta, *roots, *others)
        ctx.of = normalize, decay.dtype, rule, tracker
        tracker.flops += rule.flops(False, key, value)
        return result.to(query.dtype), last

    @staticmethod
    @_held
    @custom_bwd(device_type="cuda")
    def backward(ctx, gradient, _last):
        query, key, value, sums, beta, *_others = ctx.saved_tensors
        normalize, decays, rule, tracker = ctx.of
        tracker.flops += rule.flops(True, key, value)
        of_query, of_key, of_value, of_decay, of_beta = rule.back(query, key, value, sums, beta, gradient)
        if normalize:
            of_query = torch.empty_like(query)
            of_key = torch.empty_like(key)
        found = of_query.to(query.dtype), of_key.to(key.dtype), of_value, of_decay.to(decays), of_beta.to(beta.dtype)
        return *found, None, None, None, None


def _stated(key, value, final):
    """`chunk_gated_delta_rule_fwd_h`: states, values less what states say of them, the last state."""
    states, last = _states(key, value), None
    if final:
        last = key.new_zeros(value.size(0), value.size(2), key.size(-1), value.size(-1), dtype=torch.float32)
    return states, torch.empty_like(value), last


def _gated(query, key, value, decay, final):
    """`chunk_gated_delta_rule_fwd`."""
    square = _square(key, value)
    _written, new = _of_heads(key, value), torch.empty_like(value)
    _between, _left, last = _stated(key, new, final)
    return torch.empty_like(value), [square], last


def _gated_back(query, key, value, sums, beta, gradient):
    """`chunk_gated_delta_rule_bwd`."""
    written, new = _of_heads(key, value), torch.empty_like(value)
    _between, _left, _ = _stated(key, new, False)
    of_value = torch.empty_like(gradient)  # within chunks
    _of_states, of_value = _states(query, value), torch.empty_like(of_value)
    of_query, of_key = _of_heads(query, value), _of_heads(key, value)
    of_decay = sums.new_empty(_tiles(key, WIDE), *sums.shape)
    _of_written = torch.empty_like(written)
    of_query = _summed(of_query, query)
    of_key = _summed(of_key, key)
    of_decay = of_decay.sum(0)
    more, of_value, decay, of_beta = _written_back(key, value, sums, beta)
    of_key.add_(more)
    of_decay.add_(decay)
    of_decay = torch.empty_like(of_decay)
    return of_query, of_key, of_value, of_decay, of_beta


def _written_back(key, value, sums, beta):
    """`prepare_wy_repr_bwd`."""
    of_key, of_value = _of_heads(key, value), torch.empty_like(value)
    of_decay, of_beta = torch.empty_like(sums), torch.empty_like(beta)
    return _summed(of_key, key), of_value, of_decay, of_beta


def _kimi(query, key, value, decay, final):
    """`chunk_kda_fwd`: a decay of each number of a key."""
    squares, new, keys = _solved(key, value)
    _between, _left, last = _stated(keys, new[1], final)
    return torch.empty_like(value), [decay, *squares], last


def _solved(key, value):
    """`chunk_kda_fwd_intra`: two squares, what is written and values, decayed keys."""
    squares = [_square(key, value), _square(key, value)]
    _diagonals = _square(key, value, PART, torch.float32)
    return squares, [_of_heads(key, value), torch.empty_like(value)], _of_heads(key, value)


def _kimi_back(query, key, value, sums, beta, gradient):
    """`chunk_kda_bwd`."""
    wide = torch.float32
    _written, new, _queries, keys = (
        _of_heads(key, value), torch.empty_like(value), _of_heads(key, value), _of_heads(key, value),
    )  # fmt: skip
    _between, _left, _ = _stated(keys, new, False)
    _of_scores, of_value = _square(key, value, dtype=wide), torch.empty_like(gradient)
    _of_states, of_value = _states(key, value), torch.empty_like(of_value)
    of_query, of_key, of_value, of_decay, of_beta, _of_square = (
        _of_heads(key, value, wide), _of_heads(key, value, wide), torch.empty_like(value), torch.empty_like(sums),
        torch.empty_like(beta, dtype=wide), _square(key, value, dtype=wide),
    )  # fmt: skip
    of_query, of_key, of_beta, of_decay = _within_chunks(of_query, of_key, of_beta, of_decay)
    of_query = _summed(of_query, query)
    of_key = _summed(of_key, key)
    of_decay = torch.empty_like(of_decay)
    return of_query, of_key, of_value, of_decay, of_beta


def _within_chunks(of_query, of_key, of_beta, of_decay):
    """`chunk_kda_bwd_intra`."""
    of_query, of_key, tiles, of_decay = (
        torch.empty_like(of_query), torch.empty_like(of_key), of_beta.new_empty(_tiles(of_key, NARROW), *of_beta.shape),
        torch.empty_like(of_decay),
    )  # fmt: skip
    return of_query, of_key, tiles.sum(0).add_(of_beta), of_decay


#: The name by which transformers asks `fla` for a function -> what it does.
RULES = {
    "chunk_gated_delta_rule": Rule(_gated, _gated_back, ((3, 2, 0, 3), (9, 5, 2, 8))),
    "chunk_kda": Rule(_kimi, _kimi_back, ((3, 2, 0, 3), (7, 5, 2, 8))),
}


def _as_kernels(
    rule, tracker, query, key, value, *, g, beta, initial_state=None, output_final_state=False,
    use_qk_l2norm_in_kernel=False, cu_seqlens=None, **_
):  # fmt: skip
    """What takes the place of transformers' function, with its arguments."""
    if initial_state is not None or cu_seqlens is not None:
        raise refused(
            "packed sequences, or a state from before, are given to linear attention's kernels",
            "sequences of equal length, without cu_seq_lens_q", "batch",
        )  # fmt: skip
    width, heads, of_values = key.size(-1), key.size(2), value.size(2)
    if width > MOST_WIDTH or of_values % heads:
        raise ValueError(
            f"Setup.linear_attention: 'fla' with {heads} key heads of width {width} and {of_values} value heads, which its kernels do not "
            f"take; allowed: widths to {MOST_WIDTH}, and as many value heads as key heads, or a multiple"
        )
    return _Delta.apply(query, key, value, g, beta, use_qk_l2norm_in_kernel, output_final_state, rule, tracker)


def _asked(function) -> tuple[str, Callable] | None:
    """(the name that `function` asks the package `fla` for, transformers' own code); None of any other function."""
    kept = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
    if kept.get("package") != "fla" or kept.get("func_name") not in RULES:
        return None
    return kept["func_name"], kept["torch_function"]


def _found(module: nn.Module) -> Iterator[tuple[object, str, str, Callable]]:
    """(Python module, name there, name of a rule, transformers' own code) of each rule that a layer calls."""
    for kind in {type(child) for child in module.modules()}:
        place = sys.modules.get(kind.__module__)
        for name in getattr(inspect.unwrap(kind.forward), "__code__", _found.__code__).co_names:
            if asked := _asked(getattr(place, name, None)):
                yield place, name, *asked


@contextmanager
def delta_rules(module: nn.Module, setup: Setup, tracker: Tracker) -> Iterator[None]:
    """Within it a module's linear attention is what `setup.linear_attention` says, whether or not FLA is installed here.

    tracker: is told of FLOPs.

    Raises:
        ValueError: for "fla", where no layer asks for a function of it.
    """
    found, fla = list(_found(module)), setup.linear_attention == "fla"
    if fla and not found:
        raise ValueError(
            f"Setup.linear_attention: 'fla' with {type(module).__name__}, no layer of which asks flash-linear-attention for "
            f"{' or '.join(RULES)}; allowed: 'torch'"
        )
    rules = {rule: partial(_as_kernels, RULES[rule], tracker) for rule in RULES}
    with patched(*((place, name, rules[rule] if fla else own) for place, name, rule, own in found)):
        yield
