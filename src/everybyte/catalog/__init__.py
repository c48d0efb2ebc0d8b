"""Models, GPUs and the articles' claims: dimensions, data sheets and statements, each with its source."""

from .claims import Claim, claims
from .configs import from_config
from .gpus import Gpu, gpu, gpus
from .models import Described, Model, model, models

__all__ = ["Claim", "Described", "Gpu", "Model", "claims", "from_config", "gpu", "gpus", "model", "models"]
