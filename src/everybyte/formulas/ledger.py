"""The training step of a GPT as a ledger: what each operation takes, and what goes after it.

One rule for every operation: its outputs are taken; what backward will need stays; the rest goes as soon as nothing
refers to it any more, which in Python is often the end of the function that holds it. Blocks are alike, so the ledger
has one block's forward and one block's backward: along the blocks memory changes by the same amount each time, and the
most that lives is reached in the first or in the last.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from sympy import Add, Max, Min, ceiling

from .parameters import TENSORS
from .symbols import (
    A,
    B,
    D,
    F,
    H,
    L,
    N,
    S,
    V,
    adam,
    autocast,
    block,
    c,
    dropped,
    eager,
    ffn_bias,
    foreach,
    fp16,
    g_m,
    half,
    loop,
    master,
    moved,
    n_c,
    narrow,
    norm_bias,
    out_bias,
    qkv_bias,
    s_b,
    scaled,
    tied,
    w,
)  # fmt: skip

t = B * S
flash = 1 - eager
full = 1 - autocast
#: 1 where the flash kernel needs heads padded to a multiple of eight; the width of a head as it sees it.
padded = flash * half * narrow
head = D + padded * (8 * ceiling(D / 8) - D)
#: 1 where merging two dimensions of a transposed tensor needs a copy: neither of them is trivial.
copied_in = Min(B - 1, 1) * Min(A - 1, 1)
copied_out = Min(A - 1, 1) * Min(S - 1, 1)
copied_back = Min(B - 1, 1) * Min(A - 1, 1) * Min(S - 1, 1)
#: 1 where the heads' own width is cut out of what the kernel padded by a copy.
cut = padded * Min(t * A - 1, 1)
#: Bytes of an attention weight after softmax, which autocast runs in fp32.
p = 4 * autocast + c * full
#: 1 where query, key and value are read from copies, so that the projection that made them need not stay.
projection_goes = eager * copied_in + padded

#: Tokens in a chunk of the chunked loss, chunks, and tokens in the last one; 1 where there is a single chunk.
chunk = ceiling(t / n_c)
chunks = ceiling(t / chunk)
last_chunk = t - (chunks - 1) * chunk
lone = 1 - Min(chunks - 1, 1)

SECTIONS = ("start", "block_forward", "loss", "loss_backward", "block_backward", "end", "optimizer")
#: A chunk's forward and backward, by where it stands. Backward goes from the last chunk to the first.
CHUNKS_FORWARD = ("chunk_forward", "last_chunk_forward")
CHUNKS_BACKWARD = ("lone_chunk", "last_chunk", "second_chunk", "middle_chunk", "first_chunk", "first_chunk_of_two")
#: What stands for the loss where it is chunked, and for the blocks where whole segments of them are checkpointed.
CHUNKED = {
    "loss": ("chunked_loss", *CHUNKS_FORWARD, "chunks_added"),
    "loss_backward": ("chunks_scaled", *CHUNKS_BACKWARD, "chunks_joined"),
}
SEGMENTED = {
    "block_forward": ("first_block_passed", "block_passed"),
    "block_backward": (
        "segment_entered", "block_again", "last_block_again", "casts_dropped", "last_block_backward", "block_backward",
    ),
}  # fmt: skip
#: What goes after each operation of attention, and of the rest of a block, where forward keeps nothing of it.
FORGOTTEN_IN_ATTENTION = {
    "flash attention": ["lse", "lse32", "seed", "offset", "q_padded", "k_padded", "v_padded"],
    "padding cut": [("flash", cut)],
    "scores": ["q", "k"],
    "masked scores": ["future"],
    "weights dropout": [("weights", dropped), "weights.mask"],
    "heads": [("weights", 1 - dropped), ("weights_dropped", full), "weights_cast", "v"],
}
FORGOTTEN = FORGOTTEN_IN_ATTENTION | {
    "norm 1": ["stats1"],
    "qkv": ["n1_cast"],
    "out dropout": [("n1", full), ("qkv", 1 - projection_goes), ("flash", 1 - cut), "flash_cut", "heads", "out.mask"],
    "norm 2": ["stats2"],
    "up": ["n2_cast"],
    "gelu": ["up"],
    "down": ["gelu"],
    "down dropout": [("n2", full), "down.mask"],
    "residual 2": ["x_mid"],
}
LINEAR = ("qkv", "out", "up", "down")


@dataclass
class Operation:
    """One line of the ledger.

    Attributes:
        moment: where in the step, as `peak_at` says it. name: what happens.
        taken: tensor -> (part, bytes). gone: (tensor, 0 or 1): what goes after it, and whether.
    """

    moment: str
    name: str
    taken: dict[str, tuple[str, object]]
    gone: list[tuple[str, object]]


@dataclass
class Ledger:
    """The operations of a step, by section.

    Args:
        size: bytes of `count` tensors of `numbers` numbers, `width` bytes each.
        chunked: whether head and loss run chunk by chunk.
        checkpointing: what forward forgets and backward makes again: `none`, `segments` of blocks, `selective`.
        accumulation: which of the batches whose gradients add up: `only`, `first`, `later`, which finds gradients there, or
            `last`, where that one is unlike the others that do.
    """

    size: Callable
    chunked: bool = False
    checkpointing: str = "none"
    accumulation: str = "only"
    sections: dict[str, list[Operation]] = field(default_factory=dict)

    def __post_init__(self):
        self._moved = self._gradients_go
        self._loss_scale = "scale" if self.accumulation == "only" else "d_share"
        self._selective = self.checkpointing == "selective"
        self._forgotten = self._forgotten_in_attention if self._selective else {}
        for name in self._names():
            self.sections[name] = []
            self._lines = self.sections[name]
            getattr(self, f"_{name}")()
        self.tensors = {n: t for lines in self.sections.values() for line in lines for n, t in line.taken.items()}

    def _names(self):
        """The sections that there are."""
        names = [name for section in SECTIONS for name in (CHUNKED if self.chunked else {}).get(section, [section])]
        if self.checkpointing == "segments":
            names = [name for section in names for name in SEGMENTED.get(section, [section])]
        return names

    @property
    def _later(self):
        return self.accumulation in ("later", "last")

    @property
    def _gradients_go(self):
        """How many of a parameter's gradients go as soon as backward has made one: 1 where it is added to another, or moved."""
        return 1 if self._later else moved

    #: Whether the last of several batches is unlike those before.
    last_differs = False
    #: The linear layers of a block, and what goes where forward keeps nothing.
    _linear, _forgotten_in_attention, _all_forgotten = LINEAR, FORGOTTEN_IN_ATTENTION, FORGOTTEN
    #: What goes as backward ends.
    _ending = ("one", "scaled_loss")

    def _module_entered(self):
        """Forward begins."""

    def _backward_entered(self):
        """Backward enters the module."""

    def _backward_left(self):
        """Backward ends."""

    def _op(self, name, *taken, gone=(), part="activations"):
        """A line. `taken`: (tensor, numbers, width) each, then perhaps a count and a part of its own."""
        born = {}
        for tensor, numbers, width, *rest in taken:
            count = rest[0] if rest else 1
            born[tensor] = (rest[1] if len(rest) > 1 else part, self.size(numbers, width, count))
        pairs = [(g, 1) if isinstance(g, str) else g for g in [*gone, *self._forgotten.get(name, [])]]
        self._lines.append(Operation(self._moment, name, born, pairs))

    def amounts(self):
        """Section -> [(moment, name, [(part, bytes taken)], [(part, bytes gone)])], as `walk` adds them up."""
        return {
            section: [
                (
                    line.moment,
                    line.name,
                    list(line.taken.values()),
                    [(self.tensors[tensor][0], times * self.tensors[tensor][1]) for tensor, times in line.gone],
                )
                for line in lines
            ]
            for section, lines in self.sections.items()
        }

    def kept(self, section, part=None, upto=None, names=()):
        """Bytes that a section leaves standing.

        `part`: of that part alone. `upto`: while the operation of that name runs. `names`: of these tensors alone.
        """

        def counts(tensor):
            return part in (None, self.tensors[tensor][0]) and (not names or tensor in names)

        total = []
        for line in self.sections[section]:
            total += [size for tensor, (_, size) in line.taken.items() if counts(tensor)]
            if line.name == upto:
                break
            total += [-times * self.tensors[tensor][1] for tensor, times in line.gone if counts(tensor)]
        return Add(*total)

    # Forward.

    def _start(self):
        self._moment = "forward"
        self._op("tokens", ("tokens", t, 8))
        old = ["tokens", "targets"] if self._later else []  # the batch before's have their names still
        self._op("targets", ("targets", t, 8), gone=old, part="loss")
        self._module_entered()
        self._embedding()

    def _embedding(self):
        """From tokens to the residual stream."""
        self._op("positions", ("positions", S, 8))
        self._op("token rows", ("token_rows", t * H, w))
        self._op("position rows", ("position_rows", S * H, w))
        self._op("embedding", ("x", t * H, w), gone=["token_rows", "position_rows"])
        self._dropout("embedding", w)

    def _norm(self, name, out, stats):
        """Its output, and the mean and the inverse deviation of each token."""
        self._op(name, (out, t * H, w), (stats, t, 4, 2))

    def _dropout(self, name, width, gone=()):
        """Takes a tensor as large as its input, which goes, and a mask of one byte an element."""
        taken = (f"{name}.dropped", t * H, width, dropped), (f"{name}.mask", t * H, 1, dropped)
        self._op(f"{name} dropout", *taken, gone=[f"{name}.dropped", *gone])

    def _casts(self, name, weight, bias, has_bias):
        """Autocast's 16-bit copies of a linear layer's weight and bias."""
        self._op(f"{name} weight cast", (f"{name}.cast", weight, c, autocast), part="casts")
        self._op(f"{name} bias cast", (f"{name}.bias_cast", bias, c, autocast * has_bias), part="casts")

    def _block_forward(self, last=False):
        """`last`: of a segment that is made again, which stops at the last tensor that backward reads."""
        self._norm("norm 1", "n1", "stats1")
        self._op("qkv input cast", ("n1_cast", t * H, c, autocast))
        self._casts("qkv", 3 * H * H, 3 * H, qkv_bias)
        self._op("qkv", ("qkv", 3 * t * H, c))
        self._flash_forward()
        self._op("padding cut", ("flash_cut", t * H, c, cut))
        self._eager_forward()
        self._op("heads merged", ("merged", t * H, c, eager * copied_out), gone=["merged"])
        self._casts("out", H * H, H, out_bias)
        self._op("out", ("o", t * H, c))
        gone = [("n1", autocast), ("qkv", 0 if self._selective else projection_goes)]
        self._dropout("out", c, gone=gone)
        self._op("residual 1", ("x_mid", t * H, w), gone=["o"])
        self._norm("norm 2", "n2", "stats2")
        self._op("up input cast", ("n2_cast", t * H, c, autocast))
        self._casts("up", H * F, F, ffn_bias)
        self._op("up", ("up", t * F, c))
        self._op("gelu", ("gelu", t * F, c))
        self._casts("down", F * H, H, ffn_bias)
        if last:
            self._op("down", ("m_again", t * H, c, dropped))
            self._dropout("down", c, gone=[("n2", autocast), "m_again"])
        else:
            self._op("down", ("m", t * H, c))
            self._dropout("down", c, gone=[("n2", autocast)])
            self._op("residual 2", ("x_out", t * H, w), gone=["m"])

    def _first_block_passed(self):
        """Forward of a segment's first block: of it, its input alone stays."""
        self._forgotten = self._all_forgotten
        self._block_forward()

    def _block_passed(self):
        """Forward of another block of a segment: its input goes too."""
        self._forgotten = self._all_forgotten | {"residual 2": ["x_mid", "x_out"]}
        self._block_forward()
        self._forgotten = {}

    def _block_again(self):
        self._block_forward()

    def _last_block_again(self):
        self._block_forward(last=True)

    def _casts_dropped(self):
        """A segment is made again: autocast's copies go, but for those that backward will read."""
        self._op("casts dropped", gone=[f"{name}.bias_cast" for name in self._linear])

    def _flash_forward(self):
        """Of the scores, the logarithm of each row's sum alone; and the dropout's random state."""
        for name in "qkv":
            self._op(f"{name} padded", (f"{name}_padded", t * A * head, c, padded))
        self._op(
            "flash attention",
            ("flash", t * A * head, c, flash),
            ("lse", B * A * S, 4, flash * half),
            ("lse32", B * A * 32 * ceiling(S / 32), 4, flash * (1 - half)),
            ("seed", 1, 8 + 8 * half, flash),
            ("offset", 1, 8, flash),
        )

    def _eager_forward(self, again=False):
        """`again`: made again in backward, which stops at the last tensor that it reads."""
        square = B * A * S**2
        self._op("q copied", ("q", t * H, c, eager * copied_in))
        self._op("k copied", ("k", t * H, c, eager * copied_in))
        self._op("scores", ("scores", square, c, eager))
        self._op("scaled scores", ("scaled", square, c, eager), gone=["scores"])
        self._op("causal mask", ("future", S**2, 1, eager))
        self._op("masked scores", ("masked", square, c, eager), gone=["scaled"])
        self._op("scores in fp32", ("wide", square, 4, eager * autocast * (1 - fp16)))
        self._op("softmax", ("weights", square, p, eager), gone=["wide"])
        taken = ("weights_dropped", square, p, eager * dropped), ("weights.mask", square, 1, eager * dropped)
        self._op("weights dropout", *taken)
        self._op("weights cast", ("weights_cast", square, c, eager * autocast))
        self._op("v copied", ("v", t * H, c, eager * copied_in))
        taken = [] if again else [("heads", t * H, c, eager)]
        self._op("heads", *taken, gone=["masked", ("weights_dropped", autocast)])

    def _loss(self):
        self._norm("last norm", "nf", "statsf")
        self._moment = "loss forward"
        self._op("head input cast", ("nf_cast", t * H, c, autocast), part="loss")
        self._op("head weight cast", ("head.cast", V * H, c, autocast), part="casts")
        self._op("logits", ("logits", t * V, c), gone=[("nf", autocast)], part="loss")
        self._op("log-softmax", ("log_p", t * V, c), part="loss")
        self._op("log-probabilities in fp32", ("log_p32", t * V, 4, autocast), part="loss")
        taken = ("loss", 1, w), ("total_weight", 1, w)
        self._op("loss", *taken, gone=["logits", *self._forward_ends()], part="loss")

    def _forward_ends(self):
        """What goes as forward ends: autocast's copies of what no backward reads, and the batch before's loss."""
        copies = ("bias_cast", "cast") if self.checkpointing == "segments" else ("bias_cast",)
        return [(f"{name}.{copy}", L) for name in self._linear for copy in copies] + ["loss"] * (self._later)

    # The chunked loss.

    def _chunked_loss(self):
        self._norm("last norm", "nf", "statsf")
        self._moment = "loss forward"
        self._op("head weight cast", ("head.cast", V * H, c, autocast), part="casts")

    def _chunk_forward(self):
        self._forward_of("chunk", chunk)

    def _last_chunk_forward(self):
        self._forward_of("last_chunk", last_chunk)

    def _forward_of(self, name, tokens):
        """Nothing stays but the chunk's loss."""
        logits, log_p, wide, total = (f"{name}.forward.{x}" for x in ("logits", "log_p", "log_p32", "total_weight"))
        nf_cast = f"{name}.forward.nf_cast"
        self._op("chunk's input cast", (nf_cast, tokens * H, c, autocast), part="loss")
        self._op("chunk's logits", (logits, tokens * V, c), gone=[nf_cast], part="loss")
        self._op("chunk's log-softmax", (log_p, tokens * V, c), part="loss")
        self._op("chunk's log-probabilities in fp32", (wide, tokens * V, 4, autocast), part="loss")
        taken = (f"{name}.loss", 1, w), (total, 1, w)
        self._op("chunk's loss", *taken, gone=[logits, log_p, wide, total], part="loss")

    def _chunks_added(self):
        """The sum, then the mean."""
        gone = [("chunk.loss", chunks - 1), "last_chunk.loss", "head.cast", *self._forward_ends()]
        self._op("sum of the chunks' losses", ("sum", 1, w), part="loss")
        self._op("loss", ("loss", 1, w), gone=["sum", *gone], part="loss")

    def _chunks_scaled(self):
        self._scaled_loss()
        part = "loss"
        self._op("gradient of the sum", ("d_sum", 1, w), gone=[self._loss_scale], part=part)

    def _lone_chunk(self):
        self._backward_of("lone_chunk", last_chunk, first=True)

    def _last_chunk(self):
        self._backward_of("last_chunk", last_chunk)

    def _second_chunk(self):
        self._backward_of("second_chunk", chunk, adds="last_chunk")

    def _middle_chunk(self):
        self._backward_of("middle_chunk", chunk)

    def _first_chunk(self):
        self._backward_of("first_chunk", chunk, first=True)

    def _first_chunk_of_two(self):
        self._backward_of("first_chunk_of_two", chunk, first=True, adds="last_chunk")

    def _backward_of(self, name, tokens, first=False, adds=""):
        """A chunk made again, then its backward. The head's gradients meet as they come.

        The first to come is a view, whose storage has a second holder, so autograd does not add to it in place: the
        second (`adds`) is added to it in a new tensor, to which all others are.
        """
        alone = int(name == "lone_chunk")

        def own(tensor):
            return f"{name}.{tensor}"

        def op(title, *taken, gone=(), part="loss"):
            self._op(f"chunk's {title}", *taken, gone=gone, part=part)

        op("input cast", (own("nf_cast"), tokens * H, c, autocast))
        op("head weight cast", (own("cast"), V * H, c, autocast), part="casts")
        op("logits", (own("logits"), tokens * V, c))
        op("log-softmax", (own("log_p"), tokens * V, c))
        op("log-probabilities in fp32", (own("log_p32"), tokens * V, 4, autocast))
        op("loss", (own("loss_again"), 1, w), (own("total_weight"), 1, w), gone=[own("logits"), own("loss_again")])
        gone = [own("total_weight"), own("log_p32"), ("d_sum", int(first))]
        op("negative log-likelihood backward", (own("d_log_p"), tokens * V, p), gone=gone)
        gone = [(own("d_log_p"), autocast)]
        op("gradient cast", (own("d_log_p16"), tokens * V, c, autocast), gone=gone)
        gone = [own("log_p"), own("d_log_p16"), (own("d_log_p"), full)]
        op("log-softmax backward", (own("d_logits"), tokens * V, c), gone=gone)
        kept = alone * full * (1 - tied)  # the only gradient of the head is its gradient
        taken = (own("head.grad"), V * H, c, kept, "gradients"), (own("partial"), V * H, c, 1 - kept)
        op("head weight gradient", *taken)
        stays = alone or adds or name == "last_chunk"
        added = [] if stays else [own("partial")]
        if name == "first_chunk":  # the sum is complete: one that is not shared is added
            added.append(("head.sum", self._moved * (1 - tied)))
        gone = [
            own("nf_cast"),
            own("cast"),
            own("d_logits"),
            ("nf", int(first)),
            (own("head.grad"), self._moved),
            *added,
        ]
        op("head input gradient", (own("d_nf"), tokens * H, c), gone=gone)
        if adds:
            taken = ("head.sum", V * H, c, full, "gradients"), ("head.sum16", V * H, c, autocast)
            gone = [f"{adds}.partial", own("partial"), ("head.sum", int(first) * self._moved * (1 - tied))]
            op("head weight gradients added", *taken, gone=gone)
        if first:
            summed = own("partial") if alone else "head.sum16"
            taken = (own("head.grad32"), V * H, 4, autocast, "gradients")
            gone = [(summed, autocast), (own("head.grad32"), self._moved * (1 - tied))]
            op("head weight gradient cast", taken, gone=gone)
        op("input gradient cast", (own("d_nf32"), tokens * H, 4, autocast), gone=[(own("d_nf"), autocast)])

    def _chunks_joined(self):
        times = {
            "lone_chunk": lone,
            "last_chunk": 1 - lone,
            "second_chunk": Min(Max(chunks - 2, 0), 1),
            "middle_chunk": Max(chunks - 3, 0),
            "first_chunk": Min(Max(chunks - 2, 0), 1),
            "first_chunk_of_two": Min(chunks - 1, 1) - Min(Max(chunks - 2, 0), 1),
        }
        gone = [(f"{name}.d_nf", full * k) for name, k in times.items()]
        gone += [(f"{name}.d_nf32", k) for name, k in times.items()]
        self._op("chunks' input gradients joined", ("d_nf", t * H, w), gone=gone, part="loss")
        self._moment = "backward"
        self._norm_backward("last norm", "dx", gone=["x", "statsf", "d_nf"])

    # Backward.

    def _scaled_loss(self):
        """Backward begins: with the batch's share in the loss, where there are several, and its scale, where there is one."""
        self._moment, part, several = "loss backward", "loss", int(self.accumulation != "only")
        gone = ["share"] if self._later else []
        self._op("share in the loss", ("share", 1, w, several), gone=gone, part=part)
        self._op("scaled loss", ("scaled_loss", 1, 4, scaled), part=part)
        self._op("gradient of one", ("one", 1, w), part=part)
        self._op("scale of the loss", ("scale", 1, 4, scaled), part=part)
        self._op("gradient of the share", ("d_share", 1, w, several), gone=[("scale", several)], part=part)
        self._backward_entered()

    def _loss_backward(self):
        self._scaled_loss()
        part = "loss"
        self._op(
            "negative log-likelihood backward",
            ("d_log_p", t * V, p),
            gone=["total_weight", "log_p32", self._loss_scale],
            part=part,
        )
        self._op("gradient cast", ("d_log_p16", t * V, c, autocast), gone=[("d_log_p", autocast)], part=part)
        gone = ["log_p", "d_log_p16", ("d_log_p", full)]
        self._op("log-softmax backward", ("d_logits", t * V, c), gone=gone, part=part)
        grad = ("head.grad", V * H, c, full * (1 - tied), "gradients")
        self._op("head weight gradient", grad, ("head.partial", V * H, c, full * tied + autocast), part=part)
        gone = ["nf_cast", ("nf", full), "head.cast", "d_logits", ("head.grad", self._moved)]
        self._op("head input gradient", ("d_nf", t * H, c), gone=gone, part=part)
        grad = ("head.grad32", V * H, 4, autocast, "gradients")
        gone = [("head.partial", autocast), ("head.grad32", self._moved * (1 - tied))]
        self._op("head weight gradient cast", grad, gone=gone, part=part)
        self._op("head input gradient cast", ("d_nf32", t * H, 4, autocast), gone=[("d_nf", autocast)], part=part)
        self._moment = "backward"
        self._norm_backward("last norm", "dx", gone=["x", "statsf", ("d_nf", full), "d_nf32"])

    def _norm_backward(self, name, gradient, gone):
        taken = (f"{name}.grad", H, w, 1, "gradients"), (f"{name}.bias_grad", H, w, norm_bias, "gradients")
        added = [(f"{name}.grad", self._moved), (f"{name}.bias_grad", self._moved)]
        self._op(f"{name} backward", (gradient, t * H, w), *taken, gone=[*gone, *added])

    def _linear_backward(self, name, inputs, weight, bias, has_bias, saved, gone, stays=False):
        """Gradients of a linear layer's input, weight and bias; under autocast 16-bit ones, then cast.

        `saved`: its input. What was made again goes as soon as it is read; what was kept, when all gradients are made.
        `stays`: whether the weight's, as a product without bias makes it, stays for now where it is to go.
        """
        own, saved = "gradients", [*saved, f"{name}.cast"]
        again = self.checkpointing == "segments"
        self._weight_gradient(name, weight, 1 - has_bias, "first.")  # a matrix product's, where there is no bias
        self._op(f"{name} input gradient", (f"d_{name}", inputs, c))
        self._weight_gradient(name, weight, has_bias, gone=saved if again else [])
        taken = (
            (f"{name}.bias_grad", bias, c, full * has_bias, own),
            (f"{name}.bias_grad16", bias, c, autocast * has_bias),
        )
        added = [(f"{name}.{x}", self._moved) for x in ("grad", "bias_grad", *([] if stays else ["first.grad"]))]
        self._op(f"{name} bias gradient", *taken, gone=[*gone, *([] if again else saved), *added])
        taken = (f"{name}.bias_grad32", bias, 4, autocast * has_bias, own)
        gone = [f"{name}.bias_grad16", (f"{name}.bias_grad32", self._moved)]
        self._op(f"{name} bias gradient cast", taken, gone=gone)
        taken = (f"{name}.grad32", weight, 4, autocast, own)
        gone = [f"{name}.grad16", f"{name}.first.grad16", (f"{name}.grad32", self._moved)]
        self._op(f"{name} weight gradient cast", taken, gone=gone)

    def _weight_gradient(self, name, weight, there, when="", gone=()):
        taken = (
            (f"{name}.{when}grad", weight, c, full * there, "gradients"),
            (f"{name}.{when}grad16", weight, c, autocast * there),
        )
        self._op(f"{name} weight gradient", *taken, gone=gone)

    def _gradient_cast(self, name):
        self._op(f"{name} gradient cast", (f"{name}.in", t * H, c, autocast))

    def _branch_backward(self, name, entered=False):
        """The residual stream's gradient enters a branch: cast to 16 bits, through its dropout. Returns what it leaves."""
        if not entered:
            self._gradient_cast(name)
        taken = (f"{name}.undropped", t * H, c, dropped)
        self._op(f"{name} dropout backward", taken, gone=[f"{name}.mask", (f"{name}.in", dropped)])
        return [(f"{name}.in", 1 - dropped), f"{name}.undropped"]

    def _input_cast(self, name):
        self._op(f"{name} input gradient cast", (f"d_{name}32", t * H, 4, autocast), gone=[(f"d_{name}", autocast)])
        return [(f"d_{name}", full), f"d_{name}32"]

    def _segment_entered(self):
        """What the last block's backward does before it asks for a tensor that must be made again."""
        self._gradient_cast("down")

    def _last_block_backward(self):
        self._block_backward(entered=True)

    def _block_backward(self, entered=False):
        gone = self._branch_backward("down", entered)
        self._linear_backward("down", t * F, F * H, H, ffn_bias, ["gelu"], gone)
        self._op("gelu backward", ("d_gelu", t * F, c), gone=["up", "d_down"])
        self._linear_backward("up", t * H, H * F, F, ffn_bias, ["n2_cast", ("n2", full)], ["d_gelu"])
        gone = self._input_cast("up")
        self._norm_backward("norm 2", "d_x_mid", gone=["x_mid", "stats2", *gone, "d_x_mid"])  # added in place
        gone = self._branch_backward("out")
        kept = ["flash_cut", "heads", *([("flash", 1 - cut)] if self._selective else [])]
        self._linear_backward("out", t * H, H * H, H, out_bias, kept, gone)
        self._forgotten = {}
        self._flash_backward()
        self._eager_backward()
        gone = [g for name in "qkv" for g in ((f"d_{name}", 1 - padded), f"d_{name}_cut", f"d{name}")]
        self._op("gradients joined", ("d_split", 3 * t * H, c), gone=gone)
        self._linear_backward("qkv", t * H, 3 * H * H, 3 * H, qkv_bias, ["n1_cast", ("n1", full)], ["d_split"])
        gone = self._input_cast("qkv")
        self._norm_backward("norm 1", "d_x", gone=["x_out", "stats1", *gone, "d_x"])  # added in place

    def _flash_backward(self):
        taken = ("d_flash_padded", t * A * head, c, padded)
        self._op("padding backward", taken, gone=[("d_out", padded)])
        if self._selective:
            self._flash_forward()
        taken = [(f"d_{name}", t * A * head, c, flash) for name in "qkv"]
        gone = ["flash", "lse", "lse32", "seed", "offset", "q_padded", "k_padded", "v_padded", "d_flash_padded"]
        gone += [("qkv", flash * (1 if self._selective else 1 - padded)), ("d_out", flash * (1 - padded))]
        self._op("flash attention backward", *taken, gone=gone)
        for name in "qkv":
            self._op(f"{name} padding backward", (f"d_{name}_cut", t * H, c, padded), gone=[(f"d_{name}", padded)])
        for name in "qkv":
            self._op(
                f"{name} gradient copied", (f"d_{name}_copy", t * H, c, padded * copied_out), gone=[f"d_{name}_copy"]
            )

    def _eager_backward(self):
        square = B * A * S**2
        self._op("gradient of heads copied", ("d_heads", t * H, c, eager * copied_back), gone=["d_heads"])
        if self._selective:
            self._eager_forward(again=True)
        self._op("v gradient", ("dv", t * H, c, eager))
        gone = ["weights_cast", ("weights_dropped", full), "v", ("d_out", eager)]
        self._op("weights gradient", ("d_weights", square, c, eager), gone=gone)
        self._op("weights gradient cast", ("d_weights32", square, 4, eager * autocast), gone=[("d_weights", autocast)])
        gone = ["weights.mask", ("d_weights", full * dropped), ("d_weights32", dropped)]
        self._op("weights dropout backward", ("d_undropped", square, p, eager * dropped), gone=gone)
        gone = ["weights", "d_undropped", ("d_weights", full * (1 - dropped)), ("d_weights32", 1 - dropped)]
        width = c * fp16 + p * (1 - fp16)
        self._op("softmax backward", ("d_softmax", square, width, eager), gone=gone)
        narrowed = autocast * (1 - fp16)
        self._op("scores gradient cast", ("d_masked", square, c, eager * narrowed), gone=[("d_softmax", narrowed)])
        gone = ["future", "d_masked", ("d_softmax", 1 - narrowed)]
        self._op("mask backward", ("d_scaled", square, c, eager), gone=gone)
        self._op("scale backward", ("d_scores", square, c, eager), gone=["d_scaled"])
        self._op("q gradient", ("dq", t * H, c, eager))
        gone = ["q", "k", "d_scores", ("qkv", eager if self._selective else eager * (1 - copied_in))]
        self._op("k gradient", ("dk", t * H, c, eager), gone=gone)
        for name in ("q gradient copied", "v gradient copied"):
            self._op(name, (f"{name}.copy", t * H, c, eager * copied_out), gone=[f"{name}.copy"])

    def _positions_backward(self):
        taken = ("embedding.undropped", t * H, w, dropped)
        self._op("embedding dropout backward", taken, gone=["embedding.mask", "embedding.undropped"])
        self._op("sum over sequences", ("d_positions", S * H, w))
        taken = ("position.grad", N * H, w, 1, "gradients")
        self._op("position gradient", taken, gone=["positions", "d_positions", ("position.grad", self._moved)])

    def _end(self):
        self._positions_backward()
        summed = tied * full * (lone if self.chunked else 1)
        taken = ("token.grad", V * H, w, 1 - tied, "gradients"), ("token.partial", V * H, w, tied)
        ending = self._ending
        gone = ["dx", ("token.grad", self._moved), ("token.partial", 1 - summed), *((e, 1 - summed) for e in ending)]
        head = "lone_chunk.head.grad32" if self.chunked else "head.grad32"
        gone.append((head, self._moved * tied))
        self._op("token gradient", *taken, gone=gone)
        # Both uses of a tied table give a gradient. The head's is a transposed view, and its storage has a second holder:
        # autograd adds in place only where nobody else holds the tensor or its storage.
        taken = ("token.sum", V * H, w, summed, "gradients")
        gone = [("token.partial", summed), ("token.sum", self._moved), *((e, summed) for e in ending)]
        if self.chunked:
            gone += [("lone_chunk.partial", lone * full), ("head.sum", (1 - lone) * self._moved * tied)]
        else:
            gone += [("head.partial", full)]
        self._op("token gradients added", taken, gone=gone)
        self._backward_left()
        several = int(self.accumulation != "only")
        gone = ["total"] if self._later else []
        self._op("sum of the shares", ("total", 1, w, several), gone=gone, part="loss")

    # The optimizer.

    def _optimizer(self):
        self._moment, part = "optimizer step", "optimizer"
        checks = [(f"check{i}", 1, 4, scaled) for i in range(4)]
        self._op("gradients unscaled", *checks, gone=[name for name, *_ in checks[1:]], part=part)
        fresh = master * (1 - Min(g_m, 1))
        self._lump("fp32 gradients", "grads32", self._all(4, fresh))
        self._lump("root of the variance", "roots", self._all(s_b, adam * foreach), gone=["roots"])
        self._lump("root of one tensor's variance", "root", self._one_root(), gone=["root", "grads32", "check0"])

    def _lump(self, name, tensor, size, gone=()):
        self._lines.append(Operation(self._moment, name, {tensor: ("optimizer", size)}, [(g, 1) for g in gone]))

    def _all(self, width, count):
        """A tensor beside each parameter tensor."""
        return sum(self.size(x.elements, width, x.count * count) for x in TENSORS)

    @property
    def _optimized(self):
        """(numbers, whether there is one) of the tensors that the optimizer goes through, blocks being alike."""
        block = [(H, 1), (H, norm_bias), (3 * H * H, 1), (3 * H, qkv_bias), (H * H, 1), (H, out_bias)]
        block += [(H, 1), (H, norm_bias), (H * F, 1), (F, ffn_bias), (F * H, 1), (H, ffn_bias)]
        return [(V * H, 1), (N * H, 1), *block, (H, 1), (H, norm_bias), (V * H, 1 - tied)]

    def _one_root(self):
        """The loop's most: the tensor before's root, scaled, still has its name while this one's root is scaled."""
        order = self._optimized
        pairs = [2 * self.size(order[0][0], s_b)]
        for (first, _), (before, surely), (numbers, there) in zip([(0, 0), *order], order, order[1:], strict=False):
            named = self.size(before, s_b, surely) + self.size(first, s_b, 1 - surely)
            pairs.append(there * (named + 2 * self.size(numbers, s_b)))
        return adam * loop * Max(*pairs, evaluate=False)


def exact(numbers, width, count=1):
    """Bytes of the tensors' numbers."""
    return count * numbers * width


def rounded(numbers, width, count=1):
    """Bytes as the allocator counts them: each tensor rounded up to the block."""
    return count * block * ceiling(numbers * width / block)
