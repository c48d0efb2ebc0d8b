"""Python objects and whole numbers that ranks tell each other on the GPU, where a rehearsal's collectives move nothing.

Between processes they travel through the group's store. A process that is alone takes every rank to be as itself, and refuses what
only another rank can know. The bytes that PyTorch would put on the GPU for them are not there: it frees them before it returns.
"""

import functools
import inspect
from collections import Counter
from collections.abc import Callable

from . import reads
from .others import instead

#: Functions of PyTorch in whose place those of an `Exchange` stand.
NAMES = (
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list", "recv_object_list",
)  # fmt: skip
#: Bytes up to which a tensor travels through the store: numbers that ranks agree upon, not weights.
SMALL = 65_536


def only_there(what: str, of: str) -> ValueError:
    """The error of who is alone where only another rank knows something."""
    return ValueError(
        f"rehearse.alone: {what} waits for word {of}, which is not there; allowed: without --alone, by torchrun, a process for each rank"
    )


def _all_to_all(original, output, input, output_split_sizes=None, input_split_sizes=None, *args, **kwargs):
    """PyTorch's `all_to_all_single`; where the rows for each rank were read off the GPU as zeros the error says so."""
    if input_split_sizes and sum(input_split_sizes) == 0 < len(input):
        raise ValueError("rehearse.all_to_all_single: how many rows go to each rank was read off the GPU, as zeros; allowed: equal "
                         "parts, a capacity for each expert, the dispatchers of Megatron-LM and torchtitan, which are taken to be even")  # fmt: skip
    return original(output, input, output_split_sizes, input_split_sizes, *args, **kwargs)


class Exchange:
    """Collectives of objects, and of rows, in place of PyTorch's of the same names.

    Args:
        note: called with what is taken by rule. alone: whether this process stands for every rank.
    """

    def __init__(self, torch, note: Callable[[str], None], alone: bool = False):
        self.torch, self.note, self.alone, self.told = torch, note, alone, Counter()
        self.c10d = torch.distributed.distributed_c10d
        self._receive = self.c10d.recv_object_list
        for name in NAMES:
            instead(self.c10d, torch.distributed, name=name)(functools.partial(self._sent, getattr(self, name)))
        instead(self.c10d, torch.distributed, name="all_to_all_single")(_all_to_all)

    def _sent(self, ours, original, *args, **kwargs):
        """Send objects by a function of this class where PyTorch would send them over the GPU, or where nobody would answer."""
        said = inspect.signature(original).bind(*args, **kwargs).arguments
        group, device = said.get("group"), said.get("device")
        outside = self.c10d._rank_not_in_group(group)
        if not self.alone:
            if outside or self.torch.device(device or self.c10d._get_object_coll_device(group)).type != "cuda":
                return original(*args, **kwargs)
        return None if outside else ours(*args, **kwargs)

    def all_gather_object(self, object_list, obj, group=None):
        object_list[:] = self._gathered(obj, group)

    def gather_object(self, obj, object_gather_list=None, dst=None, group=None, group_dst=None):
        found = self._gathered(obj, group)
        if self.c10d.get_rank() == self.rank(0 if dst is group_dst is None else dst, group, group_dst):
            object_gather_list[:] = found

    def broadcast_object_list(self, object_list, src=None, group=None, device=None, group_src=None):
        source = self.rank(0 if src is group_src is None else src, group, group_src)
        if self.alone:
            if source != self.c10d.get_rank() and all(one is None for one in object_list):
                raise only_there("broadcast_object_list", f"of rank {source}")
            return
        where = self._place("broadcast", source, group)
        if source == self.c10d.get_rank():
            self._put(where, list(object_list))
        else:
            object_list[:] = self._get(where)

    def scatter_object_list(
        self, scatter_object_output_list, scatter_object_input_list=None, src=None, group=None, group_src=None
    ):
        source = self.rank(0 if src is group_src is None else src, group, group_src)
        where, own = self._place("scatter", source, group), self.c10d.get_rank(group)
        if source == self.c10d.get_rank():
            scatter_object_output_list[0] = scatter_object_input_list[own]
            if not self.alone:
                self._put(where, list(scatter_object_input_list))
        elif self.alone:
            raise only_there("scatter_object_list", f"of rank {source}")
        else:
            scatter_object_output_list[0] = self._get(where)[own]

    def send_object_list(self, object_list, dst=None, group=None, device=None, group_dst=None, **more):
        if not self.alone:
            source = self.c10d.get_rank()
            self._put(self._place(f"{source}/{self.rank(dst, group, group_dst)}", 0), list(object_list))

    def recv_object_list(self, object_list, src=None, group=None, device=None, group_src=None, **more):
        if src is group_src is None:  # of anybody
            return self._receive(object_list, None, group, device, **more)
        source = self.rank(src, group, group_src)
        if self.alone:
            raise only_there("recv_object_list", f"of rank {source}")
        object_list[:] = self._get(self._place(f"{source}/{self.c10d.get_rank()}", 0))
        return source

    def agreed(self, vote: bool, group) -> bool:
        """Whether every rank of a group votes so."""
        return all(self._gathered(vote, group))

    def small(self, tensor) -> bool:
        """Whether a tensor on the GPU is so small that it travels through the store."""
        return tensor.device.type == "cuda" and 0 < tensor.numel() * tensor.element_size() <= SMALL

    def tell(self, kind: str, tensor, source: int, group=None) -> None:
        """Tell a group a small tensor, if its content is known; else that it is not."""
        known = tensor.is_contiguous() and reads.knows(tensor.data_ptr(), tensor.numel() * tensor.element_size())
        bits = tensor.detach().reshape(-1).view(self.torch.uint8).tolist() if known else ()
        self._store().set(self._place(kind, source, group), bytes(bits))

    def hear(self, kind: str, tensor, source: int, group=None) -> None:
        """Write into a small tensor what `source` told; nothing where it did not know it."""
        if data := self._store().get(self._place(kind, source, group)):
            sent = self.torch.frombuffer(bytearray(data), dtype=self.torch.uint8).view(tensor.dtype)
            tensor.detach().copy_(sent.reshape(tensor.shape))

    def _gathered(self, obj, group):
        own, size = self._packed(obj), self.c10d.get_world_size(group)
        if self.alone:
            return [self._unpacked(own) for _ in range(size)]
        where = self._place("gather", 0, group)
        self._store().set(f"{where}/{self.c10d.get_rank(group)}", own)
        return [self._unpacked(self._store().get(f"{where}/{rank}")) for rank in range(size)]

    def rank(self, rank, group, group_rank):
        """A rank among all, from that or from the one in its group."""
        return rank if rank is not None else self.c10d.get_global_rank(group or self.c10d.group.WORLD, group_rank)

    def _place(self, kind, source, group=None):
        """A name in the store that is the same on each rank of a group: they call their collectives in one order."""
        group = group or self.c10d.group.WORLD
        first = min(self.c10d.get_process_group_ranks(group))  # groups of one name share no rank
        key = f"{kind}/{source}/{self.c10d._get_process_group_name(group)}/{first}"
        self.told[key] += 1
        return f"everybyte/{key}/{self.told[key]}"

    def _store(self):
        return self.c10d._get_default_store()

    def _put(self, where, objects):
        self._store().set(where, self._packed(objects))

    def _get(self, where):
        return self._unpacked(self._store().get(where))

    def _packed(self, obj):
        data, _ = self.c10d._object_to_tensor(obj, self.torch.device("cpu"), None)
        return bytes(data.tolist())

    def _unpacked(self, data):
        data = self.torch.frombuffer(bytearray(data), dtype=self.torch.uint8)
        return self.c10d._tensor_to_object(data, len(data), None)
