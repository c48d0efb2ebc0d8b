"""Models, GPUs and the articles' claims: dimensions, data sheets and statements, each with its source."""

from .claims import Claim, claims
from .gpus import Gpu, gpu, gpus
from .models import Described, Model, model, models

__all__ = ["Claim", "Described", "Gpu", "Model", "claims", "gpu", "gpus", "model", "models"]
