"""FSDP1 on device meta: PyTorch's `FullyShardedDataParallel` accepts it, and the tracker sees what no operation shows.

Its flat tensors stay, and their storages are resized: to nothing where PyTorch frees them, to their size where it takes them.
"""

from os.path import commonprefix
from unittest import mock

from .mesh import Device
from .tracker import Tracker


def flat_on_meta(tracker: Tracker):
    """Patches under which FSDP1 runs on device meta, followed by the tracker."""
    from torch.distributed.fsdp import (
        _common_utils,
        _flat_param,
        _init_utils,
        _runtime_utils,
        fully_sharded_data_parallel,
    )

    change, handle = mock.patch.object, Device(tracker)
    yield change(
        fully_sharded_data_parallel, "_init_device_handle", lambda state, *_: setattr(state, "_device_handle", handle)
    )
    yield change(_common_utils._FSDPDeviceHandle, "from_device", lambda device: handle)
    yield change(_init_utils, "_need_to_materialize_module", lambda *_: (False, False))
    # On meta every address is 0.
    yield change(_flat_param, "_data_ptr_allocated", lambda tensor: tensor.untyped_storage().nbytes() > 0)
    yield change(_flat_param, "_same_storage", lambda a, b: a.untyped_storage()._cdata == b.untyped_storage()._cdata)
    made = _flat_param.FlatParamHandle.init_flat_param_attributes
    yield change(_flat_param.FlatParamHandle, "init_flat_param_attributes", _made(tracker, made))
    sent = _runtime_utils._post_backward_hook
    yield change(_runtime_utils, "_post_backward_hook", _sent(tracker, sent))
    entered = _runtime_utils._register_post_backward_hook
    yield change(_runtime_utils, "_register_post_backward_hook", _entered(tracker, entered))


def _path(state, flat):
    """The module that a unit is."""
    names = [state._exec_order_data.param_to_fqn[parameter][0].split(".") for parameter in flat._params]
    return ".".join(commonprefix(names)) or "root"


def _made(tracker, make):
    """The buffers that a unit is cast into, and gathered into."""

    def run(handle):
        make(handle)
        flat = handle.flat_param
        for name, part in (("_mp_shard", "communication"), ("_full_param_padded", "unsharded")):
            if hasattr(flat, name):
                tracker.assign(getattr(flat, name), part)

    return run


def _entered(tracker, register):
    """In forward: tell the tracker of each weight's gradient, once it comes."""

    def run(state, handle):
        register(state, handle)
        for view in handle.flat_param._tensors if handle else ():
            if view is not None and view.requires_grad:
                view.register_hook(lambda gradient: tracker.assign(gradient, "gradients"))

    return run


def _sent(tracker, send):
    """Backward has left a unit: its flat gradient, and what becomes of it."""

    def run(state, handle, *unused):
        flat, path = handle.flat_param, _path(state, handle.flat_param)
        tracker.assign(flat.grad, "gradients", path)
        with tracker.making("communication", path):
            send(state, handle, *unused)
        for gradient in (flat.grad, getattr(flat, "_saved_grad_shard", None)):
            if gradient is not None:
                tracker.assign(gradient, "gradients", path)

    return run
