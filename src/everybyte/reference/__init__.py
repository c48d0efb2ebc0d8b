"""The model and the training step that dry run and labs share, written to be read."""

from .gpt import GPT
from .llama import Llama
from .step import Trainer

__all__ = ["FAMILIES", "GPT", "Llama", "Trainer"]

#: What builds the models of each `Model.family`.
FAMILIES = {"gpt": GPT, "llama": Llama}
