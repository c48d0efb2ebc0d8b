"""Ways to save memory that a model does not know of: each changes how its modules are called."""

from torch import nn

from ...ask.setup import Setup
from ...catalog import Model
from .. import FAMILIES
from .blocks import checkpointed


def built(model: Model, setup: Setup) -> nn.Module:
    """The book's module of a model, checkpointed as the setup says."""
    return checkpointed(FAMILIES[str(model.family)](model, setup), setup)
