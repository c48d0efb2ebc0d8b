"""The formulas of the book, in sympy: the notation, the registry, one module for each topic; `formulas.toml` says what each is."""

from . import (  # noqa: F401  each fills the registry
    adapters,
    checkpointing,
    compute,
    context,
    expert_parallel,
    formats,
    inference,
    optimizers,
    parameters,
    pipelines,
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
