"""Many GPUs: what DDP, ZeRO and FSDP hold besides, on each of them, as a ledger and as named formulas.

FSDP cuts each tensor by rows, so that of N GPUs each holds the N-th part of the rows, rounded up. A unit (a block; the root,
which has the rest) is gathered into a flat buffer, copied out into whole tensors, used, and let go; its gradients are
copied into a flat buffer, and one N-th of their sum comes out. Source: PyTorch, `torch/distributed/fsdp/_fully_shard`
(`_fsdp_param_group.py` says what lives until when, `_fsdp_collectives.py` what is allocated).
"""

from dataclasses import dataclass
from functools import lru_cache

from sympy import Add, Integer, Max, ceiling, sympify

from .ledger import (
    LINEAR,
    F,
    H,
    L,
    Ledger,
    N,
    Operation,
    V,
    exact,
    ffn_bias,
    lone,
    norm_bias,
    out_bias,
    qkv_bias,
    tied,
    w,
)
from .registry import register
from .symbols import SYMBOLS, A, A_kv, D, G, P, R, fused_adam, m_w, mixed, n_a, n_s, r, s_b, sharded_weights, w_s


@dataclass(frozen=True)
class Cut:
    """Tensors of `rows` rows of `columns` numbers, `count` of them (0 or 1 in a unit), of which each GPU holds some rows."""

    name: str
    rows: object
    columns: object
    count: object = Integer(1)

    @property
    def whole(self):
        """Numbers in the whole tensor, its rows padded to a multiple of the GPUs."""
        return G * self.share

    @property
    def share(self):
        """Numbers that one GPU holds."""
        return ceiling(self.rows / G) * self.columns


EMBEDDINGS = [Cut("token.weight", V, H), Cut("position.weight", N, H)]
BLOCK = [
    Cut("norm1.weight", H, 1), Cut("norm1.bias", H, 1, norm_bias),
    Cut("qkv.weight", 3 * H, H), Cut("qkv.bias", 3 * H, 1, qkv_bias),
    Cut("out.weight", H, H), Cut("out.bias", H, 1, out_bias),
    Cut("norm2.weight", H, 1), Cut("norm2.bias", H, 1, norm_bias),
    Cut("up.weight", F, H), Cut("up.bias", F, 1, ffn_bias),
    Cut("down.weight", H, F), Cut("down.bias", H, 1, ffn_bias),
]  # fmt: skip
LLAMA_BLOCK = [
    Cut("norm1.weight", H, 1),
    Cut("q.weight", A * D, H), Cut("k.weight", A_kv * D, H), Cut("v.weight", A_kv * D, H),
    Cut("q.bias", A * D, 1, qkv_bias), Cut("k.bias", A_kv * D, 1, qkv_bias), Cut("v.bias", A_kv * D, 1, qkv_bias),
    Cut("out.weight", H, A * D),
    Cut("norm2.weight", H, 1),
    Cut("gate.weight", F, H), Cut("up.weight", F, H), Cut("down.weight", H, F),
]  # fmt: skip
LAST = [Cut("norm.weight", H, 1), Cut("norm.bias", H, 1, norm_bias), Cut("head.weight", V, H, 1 - tied)]
ROOT = [*EMBEDDINGS, *LAST]
#: Every tensor in the order of the model, with how many there are of it.
ALL = [(cut, 1) for cut in EMBEDDINGS] + [(cut, L) for cut in BLOCK] + [(cut, 1) for cut in LAST]


#: The ledger's names of a block's gradients.
BLOCK_GRADIENTS = [f"{name}.{x}" for name in LINEAR for x in ("grad", "first.grad", "bias_grad")]
BLOCK_GRADIENTS += [f"norm {i}.{x}" for i in (1, 2) for x in ("grad", "bias_grad")]


def numbers(cuts):
    """Numbers that one GPU holds of a unit."""
    return Add(*(cut.count * cut.share for cut in cuts))


#: Numbers that one GPU holds of the root, of a block, of all.
ROOT_SHARE, BLOCK_SHARE = numbers(ROOT), numbers(BLOCK)
SHARES = {"root": ROOT_SHARE, "block": BLOCK_SHARE, "model": ROOT_SHARE + L * BLOCK_SHARE}
SHARES["llama_block"] = numbers(LLAMA_BLOCK)


class ReplicatedLedger(Ledger):
    """A step whose gradients add to what stands there already."""

    _gradients_go = 1


class BucketViewsLedger(ReplicatedLedger):
    """DDP whose buckets are the gradients: all batches but the last add to tensors of their own, which then go into the views."""

    last_differs = True

    @property
    def _gradients_go(self):
        return {"only": 1, "first": 0, "later": 1, "last": 2}[self.accumulation]


class ShardedOptimizerLedger(ReplicatedLedger):
    """ZeRO-1: the optimizer sees one tensor, this GPU's share of all weights."""

    _optimized = ((ceiling(P / G), 1),)

    def _all(self, width, count):
        return self.size(ceiling(P / G), width, count)


class UnitLedger(Ledger):
    """FSDP by blocks: `zero2` and `zero3` differ in how often Shape's plan asks for the sections of a unit.

    Each gathering takes the flat buffer, then the whole tensors, all of them counted as one operation: the last is the one
    at which most lives. `alone`: one GPU, which has nobody to gather from and needs no flat buffer for it. `replicas`: several
    groups, whose averages of what was received FSDP still names as backward ends. `offload`: shares stand in the CPU's
    memory, so the GPU takes a copy of each tensor's to gather, and what was received goes as soon as it has been sent there.
    """

    alone = regathers = replicas = offload = False
    UNITS = (
        "first_unit", "next_unit", "unit_let_go", "unit_again", "unit_prefetched", "unit_whole", "flat_let_go", "block_ends",
        "block_reduced",
    )  # fmt: skip

    _moment = "backward"
    _gradients_go = 0
    _ending = ("scaled_loss",)

    def _names(self):
        return [*self.UNITS, *super()._names()]

    # The optimizer sees shards.

    @property
    def _optimized(self):
        return [(cut.share, cut.count) for cut, _ in ALL]

    def _all(self, width, count):
        return Add(*(self.size(cut.share, width, times * cut.count * count) for cut, times in ALL))

    def _optimizer(self):
        if not self.offload:
            super()._optimizer()

    # A unit.

    def _take(self, moment, name, tensor, part, size, gone=()):
        self._lines.append(Operation(moment, name, {tensor: (part, size)}, [(g, 1) for g in gone]))

    def _gathered(self, unit, moment):
        """The flat buffer; before it, where weights are cast or copied on their way, this GPU's share of it."""
        if self.alone:
            return
        share, copied = SHARES[unit], f"{unit}.copied_share"
        size = self.size(share, w, mixed)  # one tensor, into which all are cast
        if self.offload:
            size = self._each(unit, lambda cut: self.size(cut.share, w, cut.count))
        self._take(moment, f"{unit} copied", copied, "communication", size)
        self._take(moment, f"{unit} gathered", f"{unit}.flat", "communication", self.size(G * share, w), gone=[copied])

    def _copied_out(self, unit, moment, gone):
        if not self.alone:
            whole = self._each(unit, lambda cut: self.size(cut.whole, w, cut.count))
            self._take(moment, f"{unit} whole", f"{unit}.whole", "unsharded", whole, gone=gone)
            return
        # Nobody to gather from: tensor by tensor, a cast beside its copy where weights are cast. Comparing so many terms as
        # expressions would take sympy ten seconds.
        after, most = Integer(0), [Integer(0)]
        for cut, times in reversed(self._tensors(unit)):
            most.append(mixed * (cut.count * self.size(cut.share, w) - after))
            after += times * self.size(cut.whole, w, cut.count)
        self._take(moment, f"{unit} whole", f"{unit}.whole", "unsharded", after)
        self._take(
            moment, f"{unit} cast", f"{unit}.cast", "communication", Max(*most, evaluate=False), gone=[f"{unit}.cast"]
        )

    def _tensors(self, unit):
        return ALL if unit == "model" else [(cut, 1) for cut in (ROOT if unit == "root" else BLOCK)]

    def _each(self, unit, size):
        return Add(*(times * size(cut) for cut, times in self._tensors(unit)))

    def _first_unit(self):
        self._gathered("block", "forward")
        self._copied_out("block", "forward", [] if self.alone else ["root.flat"])

    def _next_unit(self):
        self._gathered("block", "forward")
        self._copied_out("block", "forward", ["block.flat"])

    def _unit_let_go(self):
        self._op("block let go", gone=["block.whole"])

    def _unit_again(self):
        self._copied_out("block", "backward", ["block.flat"])

    def _unit_prefetched(self):
        self._gathered("block", "backward")

    def _unit_whole(self):
        """For a block that is made again within a segment: its flat buffer stays until it is."""
        self._copied_out("block", "backward", [])

    def _flat_let_go(self):
        self._op("flat buffer let go", gone=[] if self.alone else ["block.flat"])

    def _block_ends(self):
        """Until here lives what the block after this one sent."""
        self._op("gradients sent", gone=["block.sent"])

    def _block_reduced(self):
        # A loop of FSDP's still names the gradient that it copied last.
        last = [] if self.alone else ["down.bias_grad", "down.first.grad"]
        self._reduced("block", [g for g in BLOCK_GRADIENTS if g not in last], last, ["block.whole"])

    def _reduced(self, unit, gradients, last, let_go):
        share, moment = SHARES[unit], "backward"
        self._op(f"{unit} let go", gone=let_go)
        self._take(moment, f"{unit} sent", f"{unit}.sent", "communication", self.size(G * share, r))
        self._op(f"{unit} gradients", gone=gradients)
        passing = self._received_passes
        part = "communication" if passing else "gradients"
        self._take(moment, f"{unit} received", f"{unit}.received", part, self.size(share, r))
        self._op(
            f"{unit} last gradient", gone=[*last, *([f"{unit}.received"] if passing and not self.replicas else [])]
        )

    @property
    def _received_passes(self):
        """Whether what is received does not stay as the gradient: it is added to what is there, or sent to the CPU."""
        return self._later or self.offload

    # The root.

    def _module_entered(self):
        self._gathered("root", "forward")
        self._copied_out("root", "forward", [])

    def _backward_entered(self):
        if self.regathers:
            self._gathered("block", "backward")

    def _forward_ends(self):
        return [*super()._forward_ends(), *([] if self.alone else ["block.flat"])]

    def _backward_left(self):
        self._op("last block's gradients sent", gone=["block.sent"])
        gradients, last = self._root_gradients()
        self._reduced("root", gradients, last, ["root.whole"])
        received = ["root.received", ("block.received", L)] if self.replicas and self._received_passes else []
        self._op("root's gradients sent", gone=["root.sent", "one", *received])

    def _root_gradients(self):
        """The root's gradients, and which of them is copied last: head, else the last norm's bias, else its weight."""
        head = [("lone_chunk.head.grad", lone), ("head.sum", 1 - lone)] if self.chunked else [("head.grad", 1)]
        shared = [("token.sum", 1), *([("head.sum", (1 - lone) * tied)] if self.chunked else [])]
        gradients = [("position.grad", 1), ("token.grad", 1), *shared]
        own = [(name, times * (1 - tied)) for name, times in head]
        bias, weight = "last norm.bias_grad", "last norm.grad"
        if self.alone:
            return [*gradients, *own, bias, weight], []
        last = [*own, (bias, tied), (weight, tied * (1 - norm_bias))]
        return [*gradients, (bias, 1 - tied), (weight, 1 - tied * (1 - norm_bias))], last


class WholeLedger(UnitLedger):
    """FSDP with one unit, the whole model."""

    UNITS = ()

    def _module_entered(self):
        self._gathered("model", "forward")
        self._copied_out("model", "forward", [])

    def _backward_entered(self):
        """All of it is whole."""

    def _forward_ends(self):
        return [*Ledger._forward_ends(self), *([] if self.alone else ["model.flat"])]

    def _backward_left(self):
        gradients, last = self._root_gradients()
        self._reduced("model", [*gradients, *((name, L) for name in BLOCK_GRADIENTS)], last, ["model.whole"])
        received = ["model.received"] if self.replicas and self._received_passes else []
        self._op("gradients sent", gone=["model.sent", "one", *received])


#: Bytes at which DDP closes its first bucket, and each other one.
FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20


@lru_cache(256)
def buckets(model, width: int) -> list[int]:
    """Bytes of each of DDP's buckets: gradients in the order in which backward makes them, `width` bytes a number.

    Source: PyTorch, torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size.
    """
    values = {entry.symbol: entry.value(model) for entry in SYMBOLS.values() if entry.needs == "model"}

    def sizes(cuts):
        cuts = [cut for cut in cuts if sympify(cut.count).subs(values)]
        return [int(sympify(cut.rows * cut.columns).subs(values)) * width for cut in cuts]

    *norm, head = LAST
    norm1, qkv, out, norm2, up, down = (BLOCK[i : i + 2] for i in range(0, len(BLOCK), 2))
    block = sizes([*down[::-1], *up[::-1], *norm2, *out[::-1], *qkv[::-1], *norm1])
    found, size = [], 0
    for gradient in [*sizes([head, *norm]), *block * model.layers, *sizes(EMBEDDINGS[::-1])]:
        size += gradient
        if size >= (BUCKET if found else FIRST_BUCKET):
            found.append(size)
            size = 0
    return found + [size] * (size > 0)


@dataclass(frozen=True)
class Kind:
    """What decides the form of a step's ledger and of what stands between steps; the rest is in symbols.

    Attributes:
        sharding: as in Setup. units: `block` or `model`, for FSDP. alone: whether FSDP's group is one GPU. replicas: whether there
            are several groups. offload: whether their shares stand in the CPU's memory. views: whether DDP's buckets are the
            gradients.
    """

    sharding: str = "none"
    units: str = ""
    alone: bool = False
    replicas: bool = False
    offload: bool = False
    views: bool = False

    @classmethod
    def of(cls, setup):
        """The kind of a setup's step."""
        units = setup.sharding_units if setup.fsdp else ""
        alone = setup.fsdp and setup.gpus == setup.replicas
        views = setup.ddp and setup.buckets == "views"
        return cls(setup.sharding, units, alone, setup.replicas > 1, setup.offload == "cpu", views)

    @property
    def ledger(self):
        """The class of the ledger."""
        if self.units:
            base = UnitLedger if self.units == "block" else WholeLedger
            form = {name: getattr(self, name) for name in ("alone", "replicas", "offload")}
            form["regathers"] = self.sharding == "zero3"
            return type(base.__name__, (base,), form)
        if self.sharding == "zero1":
            return ShardedOptimizerLedger
        return BucketViewsLedger if self.views else Ledger

    def rest(self, size):
        """Part -> bytes between steps, where they are not those of one GPU. DDP's buckets are not among them."""
        if self.offload:
            return {"parameters": Integer(0), "optimizer": Integer(0)}
        if self.units:
            return divided(size)
        if self.sharding == "zero1":
            padded = size(G * ceiling(P / G), w_s)
            return {"parameters": padded, "gradients": padded, "optimizer": _states(size, ceiling(P / G), 1)}
        return {}


def divided(size):
    """Part -> bytes of one GPU's share between steps, wherever it stands."""
    return {
        "parameters": _over(lambda cut: size(cut.share, w_s, cut.count)),
        "optimizer": _over(lambda cut: _states(size, cut.share, cut.count)),
    }


def _over(bytes_of):
    return Add(*(times * bytes_of(cut) for cut, times in ALL))


def _states(size, numbers, count):
    """The optimizer's, for a tensor of so many numbers: its states, a master copy, a fused Adam's step counter."""
    return n_s * size(numbers, s_b, count) + size(numbers, m_w, count) + size(1, 4, fused_adam * count)


_SOURCE = "PyTorch, torch/distributed/fsdp/_fully_shard"


def _register(name, title, expr, unit="B", *assumptions, chapter="32_fsdp"):
    return register(f"fsdp.{name}", title, expr, unit, source=_SOURCE, chapter=chapter, assumptions=assumptions)


for _unit, _what in (
    ("root", "the root: embeddings, last norm, head"),
    ("block", "one block"),
    ("model", "the whole model"),
    ("llama_block", "one block of a Llama"),
):
    _share = SHARES[_unit]
    _register(
        f"{_unit}.share", f"numbers that one GPU holds of {_what}", _share, "parameters", "each tensor cut by rows"
    )
    _register(
        f"{_unit}.flat",
        f"what is gathered of {_what}: a flat buffer, and as much again in whole tensors",
        G * _share * w,
    )
    _register(f"{_unit}.sent", f"the flat buffer of {_what}'s gradients that is reduced", G * _share * r)
    _register(
        f"{_unit}.received", f"what one GPU receives of it, and keeps: its share of {_what}'s gradients", _share * r
    )


#: Numbers of a GPU's shares, each time a unit is gathered for a batch.
_GATHERED = ROOT_SHARE + (1 + sharded_weights) * L * BLOCK_SHARE
_register(
    "sent", "bytes that one GPU sends in a step: each batch gathers weights and adds up gradients, among replicas too",
    n_a * ((G - 1) * (w * _GATHERED + r * SHARES["model"])
           + 2 * (R - 1) * r * (ceiling(ROOT_SHARE / R) + L * ceiling(BLOCK_SHARE / R))),
    "B", "collectives go round a ring", "units of blocks",
)  # fmt: skip
_register(
    "to_gpu",
    "what offloading copies to one GPU in a step: its shares, as they are stored, each time a unit is gathered",
    n_a * w_s * _GATHERED,
    "B",
    "units of blocks",
    chapter="26_offloading",
)
_register(
    "to_host", "what offloading copies from one GPU in a step: its share of each batch's gradients",
    n_a * r * SHARES["model"], chapter="26_offloading",
)  # fmt: skip
_DIVIDED = divided(exact)
_register("weights", "one GPU's share of the weights", _DIVIDED["parameters"])
_register("gradients", "one GPU's share of the gradients", SHARES["model"] * r)
_register("optimizer", "one GPU's share of the optimizer's states", _DIVIDED["optimizer"])
