"""The explorers: a notebook opens each with one line. They are controls around a picture that computes in the browser."""

from .bars import allocator, diffusion, experts, optimizers, parameters, patches, ring, states, tensor, zero
from .colocated import colocated
from .controls import Choice, Slider, reset, shared, steps
from .curves import attention, compiled, formats, linear_attention, loss, low_precision, offloading
from .explorer import Explorer
from .layouts import combining, pipelines
from .model import model
from .peaks import adapters, planning, serving, sharding
from .pictures import Lines, Ranges, Stack
from .segments import allocations, epochs, memory_map, played
from .step import block, checkpointing, step
from .yours import yours

__all__ = [
    "Choice", "Explorer", "Lines", "Ranges", "Slider", "Stack", "adapters", "allocations", "allocator", "attention",
    "block", "checkpointing", "colocated", "combining", "compiled", "diffusion", "epochs", "experts",
    "formats", "linear_attention", "loss", "low_precision", "memory_map", "model", "offloading", "optimizers",
    "parameters", "patches", "pipelines", "planning", "played", "reset", "ring", "serving", "sharding",
    "shared", "states", "step", "steps", "tensor", "yours", "zero",
]  # fmt: skip
