"""What a dry run must leave as it was."""

import gc
import warnings

import pytest
import torch
from torch.optim import optimizer
from torch.overrides import _get_current_function_mode_stack
from torch.utils import checkpoint
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


@pytest.fixture
def state():
    """Says what a dry run changes while it lasts, and what random numbers it might draw."""
    return _state


def _state():
    return {
        "function modes": _get_current_function_mode_stack(),
        "dispatch modes": _get_current_dispatch_mode_stack(),
        "default data type": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "autocast": [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "random numbers": torch.get_rng_state().tolist(),
        "fused optimizers": optimizer._get_fused_kernels_supported_devices,
        "checkpoint": (checkpoint.checkpoint, checkpoint._checkpoint_without_reentrant_generator),
        "warnings": list(warnings.filters),
        "collector": gc.isenabled(),
    }
