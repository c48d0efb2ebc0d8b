"""One rank of any number of GPUs, in one process: collectives move nothing, and every buffer is counted.

PyTorch's "fake" process group returns from each collective at once. FSDP and DDP run unchanged on device meta, with the CPU's
streams and events, which wait for nothing. The live bytes are still CUDA's: its allocator counts a tensor as freed with its last
reference, whatever stream used it, since FSDP orders its streams by events and does not call `record_stream`. Streams do change
which freed block may serve which request, and so the reserved bytes: each allocation has the number of its stream.
"""

import sys
import warnings
from contextlib import ExitStack, contextmanager
from functools import partial
from os.path import commonprefix
from types import SimpleNamespace
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from ..ask.setup import Setup
from ..common import checks
from .cuda import patched, refused
from .mesh import Device, in_a_ring, in_flight, on_meta
from .tracker import Tracker


@contextmanager
def as_rank(setup: Setup, tracker: Tracker, rank: int = 0):
    """A context in which this process is one rank of `setup.gpus`. The tracker is told what FSDP gathers, sends and frees.

    Raises:
        ValueError: where this process has a process group already, or there is no such rank.
    """
    checks.whole("dry_run", "rank", rank, 0, setup.gpus - 1)
    if not setup.distributed:
        yield
        return
    if dist.is_initialized():
        raise refused(f"{setup.gpus} gpus in a process that has a process group", "a process without one", "setup")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from ..reference.splitting import divided_loss

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "excepthook", sys.excepthook))  # PyTorch puts its own in place
        dist.init_process_group("fake", rank=rank, world_size=setup.gpus, store=FakeStore())
        stack.callback(dist.destroy_process_group)
        stack.enter_context(on_meta(tracker))
        stack.enter_context(divided_loss(setup))
        if setup.fsdp:
            flat = setup.fsdp_version == 1
            changes = _flat_on_meta(tracker) if flat else _fsdp_on_meta(tracker, _places(setup, rank))
            resized = torch.UntypedStorage, "resize_", _told(tracker, torch.UntypedStorage.resize_)
            stack.enter_context(patched(*changes, resized))
        parts = setup.mesh.tensor
        divide = range(rank - rank % parts, rank - rank % parts + parts) if parts > 1 else ()
        if setup.mesh.context > 1 or setup.mesh.expert > 1:
            stack.enter_context((in_a_ring if setup.mesh.context > 1 else in_flight)(divide))
        yield


def _places(setup, rank):
    """{number of GPUs among which something is divided: this rank's place among them}."""
    place = setup.sharer(rank) % setup.shards
    few = setup.resharding_gpus
    return {few: place % few, setup.expert_shards: place // setup.mesh.expert, setup.shards: place}


def _fsdp_on_meta(tracker, places):
    """What FSDP has on device meta: it accepts it, and the tracker sees what no operation shows."""
    from torch.distributed.fsdp._fully_shard import (
        _fsdp_collectives,
        _fsdp_param,
        _fsdp_param_group,
        _fsdp_state,
        _fully_shard,
    )

    group, param, handle = _fsdp_param_group.FSDPParamGroup, _fsdp_param.FSDPParam, Device(tracker)
    yield _fully_shard, "_get_device_from_mesh", lambda mesh: torch.device("meta")
    for module in (_fsdp_collectives, _fsdp_param_group, _fsdp_state):
        yield module, "_get_device_handle", lambda device: handle
    # Asked for a unit that was prefetched in vain, as one without adapters is that backward does not enter.
    yield torch.accelerator, "current_stream", handle.current_stream
    for check in ("_validate_no_meta_params", "_validate_cpu_offload_params"):
        yield group, check, lambda self: None
    yield param, "all_gather_inputs", _copied_up(tracker, param.all_gather_inputs)
    yield _fsdp_param, "_chunk_with_empty", partial(_shares, places)
    for name, part in (
        ("unshard", "communication"),
        ("wait_for_unshard", "unsharded"),
        ("post_backward", "communication"),
        ("_to_sharded_post_forward", "unsharded"),
    ):
        yield group, name, _within(tracker, part, getattr(group, name))


def _flat_on_meta(tracker):
    """What FSDP1 has on device meta. Its flat tensors stay; it frees their storages, and takes them again, by resizing them."""
    from torch.distributed.fsdp import (
        _common_utils,
        _flat_param,
        _init_utils,
        _runtime_utils,
        fully_sharded_data_parallel,
    )

    handle, handles = Device(tracker), _flat_param.FlatParamHandle
    yield fully_sharded_data_parallel, "_init_device_handle", lambda state, *_: setattr(state, "_device_handle", handle)
    yield _common_utils._FSDPDeviceHandle, "from_device", lambda device: handle
    yield _init_utils, "_need_to_materialize_module", lambda *_: (False, False)
    # On meta every address is 0.
    yield _flat_param, "_data_ptr_allocated", lambda tensor: tensor.untyped_storage().nbytes() > 0
    yield _flat_param, "_same_storage", lambda a, b: a.untyped_storage()._cdata == b.untyped_storage()._cdata
    for owner, name, told in (
        (handles, "init_flat_param_attributes", _made),
        (_runtime_utils, "_post_backward_hook", _sent),
        (_runtime_utils, "_register_post_backward_hook", _entered),
    ):
        yield owner, name, told(tracker, getattr(owner, name))


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


def _shares(places, tensor, count, dim):
    """Views of a tensor for all ranks: only the first's, to which all are padded, and this rank's, as a thousand are slow."""
    size, rank = tensor.size(dim), places[count]
    each = -(-size // count)
    shares = [tensor.narrow(dim, 0, each)] * count
    start = min(rank * each, size)
    shares[rank] = tensor.narrow(dim, start, min(each, size - start))
    return shares


def _within(tracker, part, method):
    def run(group, *args, **kwargs):
        with tracker.making(part, group._module_fqn or "root"):
            method(group, *args, **kwargs)
        for p in group.fsdp_params if method.__name__ == "post_backward" else ():
            if p.sharded_param.grad is not None:  # a view of what came out of the reduce-scatter, or a copy on the host
                tracker.assign(p.sharded_param.grad, "gradients", group._module_fqn or "root")
            if (
                whole := p.unsharded_accumulated_grad
            ) is not None:  # until the last batch: a cast of what backward made
                tracker.assign(getattr(whole, "_local_tensor", whole), "gradients", group._module_fqn or "root")

    return run


def _copied_up(tracker, inputs):
    """Copy a share on the host to the GPU before it is gathered. On meta PyTorch would not copy it.

    What stays on the GPU between forward and backward is gathered from there.
    """
    from torch.distributed.fsdp._fully_shard._fsdp_param import ShardedState

    def run(param):
        with ExitStack() as stack:
            stack.enter_context(tracker.making("communication"))
            if param.offload_to_cpu and param.sharded_state == ShardedState.SHARDED:
                copy = param._sharded_param_data.clone()
                stack.enter_context(mock.patch.object(param, "_sharded_param_data", copy))
                del copy
            return inputs.fget(param)

    return property(run)


def _told(tracker, resize):
    def run(storage, size):
        resize(storage, size)
        tracker.resized(storage)
        return storage

    return run


class _OnMeta(TorchDispatchMode):
    """DDP's ranks agree on the order of buckets by numbers that they read back: here they read this rank's own."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default and args[1].is_meta and not args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


def offload(trainer, tracker: Tracker) -> None:
    """Tell the tracker that the optimizer works on the host."""
    update = trainer.update

    def on_host():
        with tracker.on_host():
            update()

    trainer.update = on_host


def make_steady(trainer, run, tracker: Tracker) -> None:
    """One whole step, which `run` takes: from it on FSDP knows its units, DDP has its last buckets, and the optimizer has its states."""
    parts = getattr(trainer, "parts", [trainer.called])
    averaged = [part for part in parts if isinstance(part, DistributedDataParallel)]
    for module in averaged:
        module.logger = SimpleNamespace(set_runtime_stats_and_log=lambda: None)  # it times no meta tensors
    run()
    for module in averaged:
        part = "gradients" if module.gradient_as_bucket_view else "communication"
        with tracker.making(part, "buckets"), _OnMeta(), warnings.catch_warnings():
            module.reducer._rebuild_buckets()


def gathered(module):
    """(name, unsharded parameter, gathered storages) of each of FSDP's parameters that has been gathered before."""
    for state in {id(s): s for m in module.modules() if (s := getattr(m, "_get_fsdp_state", lambda: None)())}.values():
        for group in state._fsdp_param_groups:
            for p in group.fsdp_params:
                yield p._param_fqn, p.unsharded_param, p.all_gather_outputs
