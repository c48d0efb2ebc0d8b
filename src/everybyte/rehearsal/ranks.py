"""Ranks in a rehearsal, whose collectives move nothing: several processes, or one that is alone among many."""

import json
import re
import sys
from collections import Counter

from . import reads

#: The backend in place of gloo, for groups on the CPU, where a process is alone.
NOBODY = "nobody"
#: Bytes up to which a broadcast travels through the store: numbers that ranks agree upon, not weights.
SMALL = 4096


def together(torch) -> None:
    """Send Python objects between processes, such as a pipeline's shapes, through the group's store, and small broadcasts of what is known.

    PyTorch sends them as bytes on the GPU. Here collectives move nothing, so the receiver would read zeros.
    """
    from torch.distributed import distributed_c10d as c10d

    send, receive, told = c10d.send_object_list, c10d.recv_object_list, Counter()

    def place(source, target):
        told[source, target] += 1
        return f"everybyte/{source}/{target}/{told[source, target]}"

    def other(rank, group, group_rank):
        return rank if rank is not None else c10d.get_global_rank(group or c10d.group.WORLD, group_rank)

    def on_gpu(device, group):
        return torch.device(device or c10d._get_object_coll_device(group)).type == "cuda"

    def send_object_list(object_list, dst=None, group=None, device=None, group_dst=None, **more):
        if not on_gpu(device, group):
            return send(object_list, dst, group, device, group_dst, **more)
        data, _ = c10d._object_to_tensor(list(object_list), torch.device("cpu"), group)
        where = place(c10d.get_rank(), other(dst, group, group_dst))
        c10d._get_default_store().set(where, bytes(data.tolist()))

    def recv_object_list(object_list, src=None, group=None, device=None, group_src=None, **more):
        if not on_gpu(device, group) or src is group_src is None:
            return receive(object_list, src, group, device, group_src, **more)
        source = other(src, group, group_src)
        data = bytearray(c10d._get_default_store().get(place(source, c10d.get_rank())))
        object_list[:] = c10d._tensor_to_object(torch.frombuffer(data, dtype=torch.uint8), len(data), group)
        return source

    broadcast = c10d.broadcast

    def small_broadcast(tensor, src=None, group=None, async_op=False, group_src=None):
        size = tensor.numel() * tensor.element_size()
        if tensor.device.type != "cuda" or not 0 < size <= SMALL or c10d._rank_not_in_group(group):
            return broadcast(tensor, src, group, async_op, group_src)
        source, store = other(src, group, group_src), c10d._get_default_store()
        name = c10d._get_process_group_name(group or c10d.group.WORLD)
        told[name, source] += 1
        where = f"everybyte/broadcast/{name}/{source}/{told[name, source]}"
        if c10d.get_rank() == source:
            known = tensor.is_contiguous() and reads.knows(tensor.data_ptr(), size)
            bits = tensor.detach().reshape(-1).view(torch.uint8) if known else ()
            store.set(where, bytes(bits.tolist()) if known else b"")
        work = broadcast(tensor, src, group, async_op, group_src)
        if c10d.get_rank() != source and (data := store.get(where)):
            sent = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(tensor.dtype).reshape(tensor.shape)
            tensor.detach().copy_(sent)
        return work

    small_broadcast.__name__ = "broadcast"
    for module in (torch.distributed, c10d):
        for instead in (send_object_list, recv_object_list, small_broadcast):
            setattr(module, instead.__name__, instead)


def settled() -> None:
    """Wait until PyTorch has seen that every collective is done.

    A thread looks every tenth of a second, and until then NCCL's tensors, such as DDP's first buckets, are not freed. A step on a
    GPU takes longer than that. A rehearsed one does not, and its peak would hold a random number of them.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    for group in list(c10d._world.pg_map) if c10d else ():
        for device in group._device_types:
            if device.type == "cuda" and group._get_backend(device).name() == "nccl":
                reads.catch_up()
                group._wait_for_pending_works()


def talked(torch) -> dict[str, dict]:
    """Group -> how many `ranks` it has, how far `apart` its neighbors are, and what it `does`: `sum`, `exchange` or `neighbors`, the kinds
    of a `Communicator`. Of those that have communicated, as PyTorch's flight recorder tells it: its last 2,000 operations.
    """
    tell = getattr(getattr(torch._C, "_distributed_c10d", None), "_dump_nccl_trace_json", None)
    told = json.loads(tell(includeCollectives=True, onlyActive=False)) if tell else {}
    groups = {name: json.loads(group["ranks"]) for name, group in told.get("pg_config", {}).items()}
    found = {}
    for event in told.get("entries", ()):
        name, what = event["process_group"][0], event["profiling_name"].removeprefix("nccl:").lower()
        if not (ranks := groups.get(name)) or what.startswith("coalesced"):  # what was put together stands beside it
            continue
        kind = (
            "exchange" if what.startswith("all_to_all") else "neighbors" if what.startswith(("send", "recv")) else "sum"
        )
        apart = abs(ranks[1] - ranks[0]) if len(ranks) > 1 else 1
        found.setdefault(name, {"ranks": len(ranks), "apart": apart, "does": set()})["does"].add(kind)
    return {name: group | {"does": sorted(group["does"])} for name, group in found.items()}


def alone(torch, ranks: int) -> None:
    """Pretend to be rank 0 of `ranks`: collectives return at once and move nothing.

    On the CPU too, where gloo would wait for the other ranks: PyTorch's fake process group takes its place.
    """
    from torch._C._distributed_c10d import FakeProcessGroup
    from torch.distributed import device_mesh, distributed_c10d

    begin, more = distributed_c10d.init_process_group, distributed_c10d.new_group
    distributed_c10d.Backend.register_backend(
        NOBODY,
        lambda told, _options: FakeProcessGroup._create_internal(told.group_rank, told.group_size),
        extended_api=True,
        devices=["cpu"],
    )

    def nobody(backend):
        return backend and re.sub(r"\bgloo\b", NOBODY, str(backend).lower())

    def init_process_group(backend=None, *args, **kwargs):
        kept = {name: kwargs[name] for name in ("timeout", "device_id") if kwargs.get(name) is not None}
        backend = nobody(backend) or f"cpu:{NOBODY},cuda:nccl"
        return begin(backend, rank=0, world_size=ranks, store=torch.distributed.HashStore(), **kept)

    def new_group(ranks=None, timeout=None, backend=None, *args, **kwargs):
        return more(ranks, timeout, nobody(backend), *args, **kwargs)

    distributed_c10d._store_based_barrier = lambda *args, **kwargs: None  # the others will not come
    for module in (torch.distributed, distributed_c10d, device_mesh):
        for instead in (init_process_group, new_group):
            if hasattr(module, instead.__name__):
                setattr(module, instead.__name__, instead)
