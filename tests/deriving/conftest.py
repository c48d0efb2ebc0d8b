"""Nothing is taken from the user's cache, and nothing put there."""

import gc
import warnings

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils import checkpoint
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("EVERYBYTE_CACHE", "off")


@pytest.fixture
def state():
    """What a dry run changes while it lasts."""
    function = _get_current_function_mode_stack, _get_current_dispatch_mode_stack, torch.is_grad_enabled, gc.isenabled
    return lambda: (
        *(f() for f in function),
        checkpoint.checkpoint,
        torch.is_autocast_enabled("cuda"),
        list(warnings.filters),
    )
