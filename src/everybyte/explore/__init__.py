"""The explorers: one line each in a notebook. Controls around a picture that computes in the browser."""

from .adapters import adapters
from .allocator import allocator
from .attention import attention
from .batches import batches
from .block import block
from .checkpointing import checkpointing
from .combining import combining
from .controls import Choice, Slider, reset, shared, steps
from .explorer import Explorer
from .formats import formats
from .loss import loss
from .model import model
from .offloading import offloading
from .optimizers import optimizers
from .parameters import parameters
from .pictures import Lines, Ranges, Stack
from .pipelines import pipelines
from .planning import planning
from .precision import precision
from .ring import ring
from .segments import allocations, memory_map, played
from .serving import serving
from .sharding import sharding
from .states import states
from .step import step
from .tensor import tensor
from .uploading import upload
from .zero import zero

__all__ = [
    "Choice", "Explorer", "Lines", "Ranges", "Slider", "Stack", "adapters", "allocations", "allocator", "attention",
    "batches", "block", "checkpointing", "combining", "formats", "loss", "memory_map", "model", "offloading",
    "optimizers", "parameters", "pipelines", "planning", "played", "precision", "reset", "ring", "serving",
    "sharding", "shared", "states", "step", "steps", "tensor", "upload", "zero",
]  # fmt: skip
