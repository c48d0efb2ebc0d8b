"""The model and the training step that dry run and labs share, written to be read."""

from .gpt import GPT
from .llama import Llama, unlike_llama
from .step import Trainer

__all__ = ["GPT", "Llama", "Trainer", "unlike_llama"]
