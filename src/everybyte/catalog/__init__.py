"""Models and GPUs: dimensions and data sheets, each with its source."""

from .gpus import Gpu, gpu, gpus
from .models import Model, model, models

__all__ = ["Gpu", "Model", "gpu", "gpus", "model", "models"]
