"""The book's formulas, in sympy: notation, registry, one module per topic. Their titles and sources stand in `formulas.toml`."""

from . import (  # noqa: F401  each fills the registry
    adapters,
    compiled,
    compute,
    context,
    diffusion,
    dispatch,
    expert_parallel,
    formats,
    inference,
    latent,
    linear_attention,
    optimizers,
    parameters,
    phases,
    pictures,
    pipelines,
    quantized,
    sharding,
    states,
    step,
    tensor_parallel,
    workspaces,
    zero,
)
from .registry import Amount, Formula, bindings, formula, registry
from .symbols import SYMBOLS

__all__ = ["SYMBOLS", "Amount", "Formula", "bindings", "formula", "registry"]
