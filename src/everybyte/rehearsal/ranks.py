"""Ranks in a rehearsal, whose collectives move nothing: several processes, or one that is alone among many."""

import json
import re
import sys
from collections.abc import Callable

from . import experts, others, reads
from .objects import Exchange, only_there

#: The backend in place of gloo, for groups on the CPU, where a process is alone.
NOBODY = "nobody"
#: Collectives whose first argument, a tensor or several, is written.
WRITE_FIRST = (
    "all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "scatter", "recv",
    "all_to_all", "all_to_all_single",
)  # fmt: skip
#: How this process talks to others, where there are several.
_exchanges: list[Exchange] = []


def together(torch, note: Callable[[str], None]) -> None:
    """Send Python objects between processes through the group's store, and what is known of small broadcasts and of whole numbers.

    PyTorch sends them as bytes on the GPU. Here collectives move nothing, so the receiver would read zeros. `note`: called with
    what is taken by rule.
    """
    from torch.distributed import distributed_c10d as c10d

    exchange = Exchange(torch, note)
    _exchanges.append(exchange)
    instead = others.instead(c10d, torch.distributed)

    @instead
    def broadcast(plain, tensor, src=None, group=None, async_op=False, group_src=None):
        if not exchange.small(tensor) or c10d._rank_not_in_group(group):
            return plain(tensor, src, group, async_op, group_src)
        source = exchange.rank(src, group, group_src)
        if mine := c10d.get_rank() == source:
            exchange.tell("broadcast", tensor, source, group)
        work = plain(tensor, src, group, async_op, group_src)
        if not mine:
            exchange.hear("broadcast", tensor, source, group)
        return work

    def whole_numbers(tensor):
        return exchange.small(tensor) and not tensor.is_floating_point() and not tensor.is_complex()

    @instead
    def isend(plain, tensor, dst=None, group=None, tag=0, group_dst=None):
        if whole_numbers(tensor):
            exchange.tell(f"to {exchange.rank(dst, group, group_dst)}", tensor, c10d.get_rank(), group)
        return plain(tensor, dst, group, tag, group_dst)

    @instead
    def irecv(plain, tensor, src=None, group=None, tag=0, group_src=None):
        work = plain(tensor, src, group, tag, group_src)
        if whole_numbers(tensor) and not later and (src is not None or group_src is not None):
            exchange.hear(f"to {c10d.get_rank()}", tensor, exchange.rank(src, group, group_src), group)
        return work

    later: list[bool] = []  # within a batch: what is received is there after all is sent

    @instead
    def batch_isend_irecv(plain, operations):
        later.append(True)
        try:
            works = plain(operations)
        finally:
            later.pop()
        for one in operations:
            if one.op is irecv and whole_numbers(one.tensor):
                exchange.hear(f"to {c10d.get_rank()}", one.tensor, one.peer, one.group)
        return works


def forget_what_is_exchanged(torch, known) -> None:
    """Have collectives make unknown what they write, where there are several ranks."""
    from torch.distributed import distributed_c10d as c10d

    def exchange(original, *args, **kwargs):
        if not torch.compiler.is_compiling() and known.kept and c10d.get_world_size() > 1:
            first = next(iter([*args, *kwargs.values()]), ())
            for one in [first] if torch.is_tensor(first) else first:
                known.forget(one)
        return original(*args, **kwargs)

    for name in WRITE_FIRST:
        others.instead(c10d, torch.distributed, name=name)(exchange)


def pipelines(schedules, note: Callable[[str], None]) -> None:
    """Let a pipeline's ranks agree on whether all know their tensors' shapes, which they would read off the GPU.

    Who is alone takes what others would tell it by rule: a gradient is shaped as its output; a later stage of the same rank receives
    what an earlier one sends.
    """
    stages, base = sys.modules["torch.distributed.pipelining.stage"], schedules._PipelineSchedule
    if not _exchanges or not hasattr(base, "_warmup_p2p"):
        return  # PyTorch before 2.13: nobody votes
    exchange = _exchanges[-1]

    @others.instead(base)
    def _warmup_p2p(warm, self, own, has_backward, p2p_done):
        warm(self, own, has_backward, p2p_done)
        if all(isinstance(stage, stages.PipelineStage) for stage in own):
            modes = stages.InferenceMode
            known = not any(modes.needs_dynamic(stage._user_meta, has_backward) for stage in own)
            mode = modes.STATIC if exchange.agreed(known, own[0].group) else modes.DYNAMIC
            for stage in own:
                stage._inference_mode = mode

    if exchange.alone:
        _shapes_by_rule(stages, note)


def _shapes_by_rule(stages, note) -> None:
    """Have a pipeline's stages that are alone receive shapes by the rule of `pipelines`."""
    sent = {}

    def _send_meta(self, meta, dst_stage):
        if dst_stage > self.stage_index:
            sent[self.stage_index] = meta

    def _recv_meta(self, src_stage):
        if src_stage < self.stage_index:
            if not (earlier := [index for index in sent if index < self.stage_index]):
                raise only_there("a pipeline's stage", f"of stage {src_stage}")
            note(
                f"stage {self.stage_index} of the pipeline is taken to receive what stage {max(earlier)} sends: stage {src_stage} is not there"
            )
            return sent[max(earlier)]
        outputs = self._stage_meta.outputs
        if self._stage_meta.has_dtensors():
            raise only_there("a pipeline's stage of DTensors", f"of stage {src_stage}")
        return stages._StageBackwardMeta(backward_metas=stages._derive_grad_metas(outputs))

    stages.PipelineStage._send_meta, stages.PipelineStage._recv_meta = _send_meta, _recv_meta


#: Module -> what is called with it, and with what notes the rule, after its import.
BY_RULE = {"torch.distributed.pipelining.schedules": pipelines} | experts.BY_RULE


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


def alone(torch, ranks: int, note: Callable[[str], None]) -> None:
    """Pretend to be rank 0 of `ranks`: collectives return at once and move nothing. `note`: called with what is taken by rule.

    On the CPU too, where gloo would wait for the other ranks: PyTorch's fake process group takes its place.
    """
    from torch._C._distributed_c10d import FakeProcessGroup
    from torch.distributed import device_mesh, distributed_c10d

    _exchanges.append(Exchange(torch, note, alone=True))
    distributed_c10d.Backend.register_backend(
        NOBODY,
        lambda told, _options: FakeProcessGroup._create_internal(told.group_rank, told.group_size),
        extended_api=True,
        devices=["cpu"],
    )

    def nobody(backend):
        return backend and re.sub(r"\bgloo\b", NOBODY, str(backend).lower())

    instead = others.instead(distributed_c10d, torch.distributed, device_mesh)

    @instead
    def init_process_group(begin, backend=None, *args, **kwargs):
        kept = {name: kwargs[name] for name in ("timeout", "device_id") if kwargs.get(name) is not None}
        backend = nobody(backend) or f"cpu:{NOBODY},cuda:nccl"
        return begin(backend, rank=0, world_size=ranks, store=torch.distributed.HashStore(), **kept)

    @instead
    def new_group(more, ranks=None, timeout=None, backend=None, *args, **kwargs):
        return more(ranks, timeout, nobody(backend), *args, **kwargs)

    distributed_c10d._store_based_barrier = lambda *args, **kwargs: None  # the others will not come
