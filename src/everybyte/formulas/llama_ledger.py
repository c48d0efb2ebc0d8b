"""The training step of a Llama as a ledger: what differs from a GPT's.

Positions turn queries and keys, in fp32 whatever the precision. A norm keeps one number a token. Query, key and value are three
layers that read one norm's output, gate and up two that read another's: autocast gives each a copy, and their gradients add up.
"""

from dataclasses import dataclass

from sympy import Add, Max, Min, ceiling

from .ledger import (
    A,
    B,
    D,
    F,
    H,
    Ledger,
    S,
    V,
    autocast,
    c,
    copied_out,
    eager,
    fp16,
    full,
    half,
    head,
    p,
    padded,
    qkv_bias,
    t,
    tied,
    w,
)
from .parameters import TENSORS
from .symbols import A_kv

LINEAR = ("q", "k", "v", "out", "gate", "up", "down")
#: Heads that each layer before attention makes, and a token's numbers.
HEADS = {"q": A, "k": A_kv, "v": A_kv}
WIDTHS = {name: heads * D for name, heads in HEADS.items()}
#: 1 where merging sequences and heads, with tokens after them, needs a copy: none of the three is trivial.
copied_in = Min(B - 1, 1) * Min(A - 1, 1) * Min(S - 1, 1)
#: 1 where several query heads share a key and a value head.
grouped = Min(A - A_kv, 1)
#: 1 where PyTorch's flash attention forms the scores after all, since no fp32 kernel takes fewer key heads than query heads.
math = (1 - eager) * (1 - half) * grouped
kernel = 1 - eager - math
scores = eager + math
#: 1 where the heads' own width is cut out of what the kernel padded by a copy, to have the heads side by side.
cut = padded * Min(A - 1, 1)
#: 1 where attention reads copies, so that turned queries, or turned keys and values, need not stay.
queries_go = eager * copied_in + math + padded
keys_go = scores + padded
#: 1 where the values' gradient stands head after head and must be copied to stand token after token; where the keys' does,
#: which a product leaves with a head's tokens side by side: of several heads, or of one that is a single pair. The sum over a
#: group leaves it as the values'.
copied_values = keys_go * Min(A_kv - 1, 1) * Min(S - 1, 1)
copied_keys = eager * (1 - grouped) * Min(B - 1, 1) * Min(S - 1, 1) * Min(A - 1 + Max(3 - D, 0), 1)


def turned(name, times=1):
    """Turned queries or keys, by either of their names; the values, which are not turned."""
    return [("v", times)] if name == "v" else [(f"{name}.turned", times * (1 - half)), (f"{name}.turned16", times)]


def all_turned(queries, keys):
    """Queries, keys and values as attention gets them, and whether they go."""
    return [*turned("q", queries), *turned("k", keys), *turned("v", keys)]


#: What goes after each operation of attention, and of the rest of a block, where forward keeps nothing of it.
FORGOTTEN_IN_ATTENTION = {
    "flash attention": ["lse", "lse32", "seed", "offset", "q.padded", "k.padded", "v.padded"],
    "scores": ["q.copy", "k.root"],
    "weights cast": [("weights", autocast)],
    "heads": [("weights", full), "weights_cast", ("k.all", eager), "v.all", "future", ("q.root", 1 - copied_in)],
    "out": [("flash", cut)],
}
FORGOTTEN = FORGOTTEN_IN_ATTENTION | {
    "norm 1": ["stats1"],
    "q": ["q.input"],
    "k": ["k.input"],
    "v": ["v.input"],
    "out": [("n1", full), *all_turned(1 - queries_go, 1 - keys_go), "flash", "flash_cut", "heads"],
    "norm 2": ["stats2"],
    "gate": ["gate.input"],
    "silu": ["gate.out"],
    "up": ["up.input"],
    "product": ["silu", "up.out"],
    "down": [("n2", full), "product"],
    "residual 2": ["x_mid"],
}


class LlamaLedger(Ledger):
    """The operations of a Llama's step, by section, without dropout."""

    _linear, _forgotten_in_attention, _all_forgotten = LINEAR, FORGOTTEN_IN_ATTENTION, FORGOTTEN

    def _names(self):
        names = super()._names()
        if self.checkpointing != "segments":
            names.insert(names.index("end"), "first_block_backward")
        return names

    # Forward.

    def _embedding(self):
        """The token table's rows; cosine and sine by which each position turns each pair of a head's numbers."""
        self._op("embedding", ("x", t * H, w))
        pairs, angles = D / 2, S * D / 2
        self._op("pairs", ("pairs", pairs, 4))
        self._op("fractions", ("fractions", pairs, 4), gone=["pairs"])
        self._op("exponents", ("exponents", pairs, 4), gone=["fractions"])
        self._op("speeds", ("speeds", pairs, 4), gone=["exponents"])
        self._op("positions", ("positions", S, 4))
        self._op("angles", ("angles", angles, 4), gone=["positions"])
        self._op("cosines", ("cosines", angles, 4))
        self._op("sines", ("sines", angles, 4), gone=["speeds", "angles"])

    def _norm(self, name, out, stats):
        """The inverse root of each token's mean square, and the output."""
        self._op(f"{name} statistics", (stats, t, 4))
        self._op(name, (out, t * H, w))

    def _read(self, name, outputs, has_bias=0):
        """Under autocast, a layer's own copies of what it reads."""
        self._op(f"{name} input cast", (f"{name}.input", t * H, c, autocast))
        self._casts(name, H * outputs, outputs, has_bias)

    def _block_forward(self, last=False):
        """`last`: of a segment that is made again, which stops at the last tensor that backward reads."""
        self._norm("norm 1", "n1", "stats1")
        for name in "qk":
            self._read(name, WIDTHS[name], qkv_bias)
            self._op(name, (f"{name}.out", t * WIDTHS[name], c))
            self._turn(name)
        self._read("v", WIDTHS["v"], qkv_bias)
        self._op("v", ("v", t * WIDTHS["v"], c))
        self._flash_forward()
        self._scores_forward()
        self._op("padding cut", ("flash_cut", t * A * D, c, cut))
        self._op("heads merged", ("merged", t * A * D, c, scores * copied_out))
        self._casts("out", A * D * H, H, 0)
        gone = [] if self._selective else all_turned(queries_go, keys_go)
        self._op("out", ("o", t * H, c), gone=[("n1", autocast), "merged", *gone])
        self._op("residual 1", ("x_mid", t * H, w), gone=["o"])
        self._norm("norm 2", "n2", "stats2")
        self._read("gate", F)
        self._op("gate", ("gate.out", t * F, c))
        self._op("silu", ("silu", t * F, c))
        self._read("up", F)
        self._op("up", ("up.out", t * F, c))
        self._op("product", ("product", t * F, c))
        self._casts("down", F * H, H, 0)
        self._op("down", *([] if last else [("m", t * H, c)]), gone=[("n2", autocast)])
        if not last:
            self._op("residual 2", ("x_out", t * H, w), gone=["m"])

    def _turn(self, name):
        """Of queries or keys each pair (a, b) of numbers turned, to (a cos - b sin, b cos + a sin), in fp32."""
        numbers, products = t * WIDTHS[name], [f"{name}.product1", f"{name}.product2"]
        self._op(f"{name} in fp32", (f"{name}.wide", numbers, 4, half))
        for place, by in (("first", "a cos, b sin"), ("second", "b cos, a sin")):
            for product, what in zip(products, by.split(", "), strict=True):
                self._op(f"{name}: {what}", (product, numbers / 2, 4))
            self._op(f"{name}: {place} of each pair", (f"{name}.{place}", numbers / 2, 4), gone=products)
        gone = [f"{name}.first", f"{name}.second", (f"{name}.out", 1 - half)]
        self._op(f"{name} turned", (f"{name}.turned", numbers, 4), gone=gone)
        gone = [(f"{name}.{tensor}", half) for tensor in ("out", "wide", "turned")]
        self._op(f"{name} turned in 16 bits", (f"{name}.turned16", numbers, 2, half), gone=gone)

    def _flash_forward(self):
        """Of the scores, the logarithm of each row's sum alone; and the dropout's random state, though there is none."""
        for name, heads in HEADS.items():
            self._op(f"{name} padded", (f"{name}.padded", t * heads * head, c, padded))
        self._op(
            "flash attention",
            ("flash", t * A * head, c, kernel),
            ("lse", B * A * S, 4, kernel * half),
            ("lse32", B * A * 32 * ceiling(S / 32), 4, kernel * (1 - half)),
            ("seed", 1, 8 + 8 * half, kernel),
            ("offset", 1, 8, kernel),
        )

    def _scores_forward(self, again=False):
        """Eager attention; or PyTorch's own where no kernel fits, which scales query and key, and adds a mask in place.

        Each query head gets a copy of its key and value head, even where it has them to itself. `again`: made again in
        backward, which stops at the last tensor that it reads.
        """
        square, each = B * A * S**2, t * A * D
        self._op("q scaled", ("q.root", each, 4, math))
        self._op("ones", ("ones", S**2, 1, math))
        self._op("past", ("past", S**2, 1, math), gone=["ones"])
        self._op("minus infinity", ("infinity", 1, 4, math))
        self._op("zero", ("zero", 1, 4, math))
        self._op("mask", ("mask", S**2, 4, math), gone=["infinity", "zero"])
        self._op("k repeated", ("k.all", each, c, scores))
        self._op("v repeated", ("v.all", each, c, scores))
        self._op("k scaled", ("k.root", each, 4, math))
        self._op("q copied", ("q.copy", each, c, scores * copied_in))
        self._op("scores", ("scores", square, c, scores))
        self._op("scaled scores", ("scaled", square, c, eager), gone=[("scores", eager)])
        self._op("all positions", ("everywhere", S**2, 1, eager))
        self._op("causal mask", ("future", S**2, 1, eager), gone=["everywhere"])
        self._op("masked scores", ("masked", square, c, eager))
        self._op("scores in fp32", ("wide", square, 4, eager * autocast * (1 - fp16)))
        self._op("softmax", ("weights", square, p, scores), gone=["masked", "wide"])
        self._op("weights cast", ("weights_cast", square, c, eager * autocast))
        gone = ["scaled", ("scores", math), "past", "mask", ("k.all", math), ("q.root", copied_in)]
        self._op("heads", *([] if again else [("heads", each, c, scores)]), gone=gone)

    # Backward.

    def _norm_backward(self, name, gradient, gone):
        self._op(f"{name} backward", (gradient, t * H, w))
        taken = (f"{name}.grad", H, w, 1, "gradients")
        self._op(f"{name} weight gradient", taken, gone=[*gone, (f"{name}.grad", self._moved)])

    def _first_block_backward(self):
        """Of the block that comes last in backward: after it nobody reads cosines and sines."""
        self._block_backward(first=True)

    def _block_backward(self, entered=False, first=False):
        if not entered:
            self._gradient_cast("down")
        self._linear_backward("down", t * F, F * H, H, 0, ["product"], ["down.in"])
        self._op("product backward, to SiLU", ("d_silu", t * F, c))
        self._op("product backward, to up", ("d_up.out", t * F, c), gone=["silu", "up.out", "d_down"])
        self._linear_backward("up", t * H, H * F, F, 0, ["up.input"], ["d_up.out"])
        gone = self._input_cast("up")
        self._op("silu backward", ("d_gate.out", t * F, c), gone=["gate.out", "d_silu"])
        self._linear_backward("gate", t * H, H * F, F, 0, ["gate.input", ("n2", full)], ["d_gate.out"], stays=True)
        gone = self._added("gate", gone)
        self._norm_backward("norm 2", "d_x_mid", gone=["x_mid", "stats2", *gone, "d_x_mid"])  # added in place
        self._gradient_cast("out")
        kept = ["flash_cut", "heads", *([("flash", 1 - cut)] if self._selective else [])]
        self._linear_backward("out", t * A * D, A * D * H, H, 0, kept, ["out.in"])
        self._forgotten = {}
        self._flash_backward()
        self._scores_backward()
        found = [("v.grad_all", 1 - grouped), "v.grad_sum", ("v.flash_grad", 1 - padded), "v.flash_grad_cut"]
        gone = self._copied("v", found, copied_values)
        self._projection_backward("v", gone)
        gone = self._input_cast("v")
        found = [("k.grad_all", 1 - grouped), "k.grad_sum", ("k.flash_grad", 1 - padded), "k.flash_grad_cut"]
        self._projection_backward("k", self._copied("k", self._turned_back("k", found), copied_keys))
        gone = self._added("k", gone)
        found = [("q.grad_all", 1 - math), "q.grad_root", ("q.flash_grad", 1 - padded), "q.flash_grad_cut"]
        gone = [*gone, "d_x"]  # all that follows is added in place
        self._projection_backward("q", [*self._turned_back("q", found, first), ("d_q", full)])
        self._op("q input gradient cast", ("d_q32", t * H, 4, autocast), gone=[("d_q", autocast), "d_q32"])
        self._norm_backward("norm 1", "d_x", gone=["x_out", "stats1", *gone])

    def _projection_backward(self, name, gone):
        width = WIDTHS[name]
        saved = [
            f"{name}.input",
            *([("n1", full)] if name == "q" else []),
        ]  # the last of three to read the norm's output
        stays = name == "k"
        self._linear_backward(name, t * H, H * width, width, qkv_bias, saved, gone, stays)

    def _added(self, name, before):
        """The gradient of a layer's input meets that of another's, before the layer's weight has its own. Returns what holds the sum.

        Autograd adds in place where nobody else holds the first: under autocast. Else the first is a view.
        """
        gone = [(f"d_{name}", autocast), f"d_{name}32"]
        self._op(f"{name} input gradient cast", (f"d_{name}32", t * H, 4, autocast), gone=gone)
        own, cast = before
        gone = [own, (f"d_{name}", full), (f"{name}.first.grad", self._moved)]
        self._op(f"{name} input gradient added", (f"d_{name}_sum", t * H, c, full), gone=gone)
        return [f"d_{name}_sum", cast]

    def _turned_back(self, name, found, first=False):
        """The gradient of queries or keys before they were turned, from what holds that of them turned. Returns what holds it."""
        numbers = t * WIDTHS[name]
        self._op(f"{name} gradient in fp32", (f"{name}.grad_wide", numbers, 4, half), gone=_times(half, found))
        self._op(f"{name} gradient: second sin", (f"{name}.grad_first", numbers / 2, 4))
        self._op(f"{name} gradient: second cos", (f"{name}.grad_second", numbers / 2, 4))
        self._op(f"{name} gradient: minus first", (f"{name}.grad_minus", numbers / 2, 4))
        gone = [f"{name}.grad_minus", f"{name}.grad_more", *(["sines"] if first else [])]
        self._op(
            f"{name} gradient: minus first sin", (f"{name}.grad_more", numbers / 2, 4), gone=gone
        )  # added in place
        gone = [f"{name}.grad_more", *_times(1 - half, found), f"{name}.grad_wide", *(["cosines"] if first else [])]
        self._op(f"{name} gradient: first cos", (f"{name}.grad_more", numbers / 2, 4), gone=gone)  # added in place
        gone = [f"{name}.grad_first", f"{name}.grad_second"]
        self._op(f"{name} gradient turned back", (f"{name}.grad_back", numbers, 4), gone=gone)
        taken = (f"{name}.grad_back16", numbers, 2, half)
        self._op(f"{name} gradient in 16 bits", taken, gone=[(f"{name}.grad_back", half)])
        return [(f"{name}.grad_back", 1 - half), f"{name}.grad_back16"]

    def _copied(self, name, found, there):
        """A gradient copied, where it is, so that tokens stand one after another. Returns what holds it."""
        taken = (f"{name}.grad_copy", t * WIDTHS[name], c, there)
        self._op(f"{name} gradient copied", taken, gone=_times(there, found))
        return [*_times(1 - there, found), f"{name}.grad_copy"]

    def _flash_backward(self):
        self._op("padding backward", ("d_flash_padded", t * A * head, c, padded), gone=[("d_out", padded)])
        if self._selective:
            self._flash_forward()
        taken = [(f"{name}.flash_grad", t * heads * head, c, kernel) for name, heads in HEADS.items()]
        gone = ["flash", "lse", "lse32", "seed", "offset", "q.padded", "k.padded", "v.padded", "d_flash_padded"]
        read = kernel * (1 if self._selective else 1 - padded)
        self._op("flash attention backward", *taken, gone=[*gone, *all_turned(read, read), ("d_out", kernel - padded)])
        for name in "vkq":
            taken = (f"{name}.flash_grad_cut", t * WIDTHS[name], c, padded)
            self._op(f"{name} padding backward", taken, gone=[(f"{name}.flash_grad", padded)])

    def _scores_backward(self):
        square, each = B * A * S**2, t * A * D
        self._op("gradient of heads copied", ("d_heads", each, c, scores * copied_in), gone=["d_heads"])
        if self._selective:
            self._scores_forward(again=True)
        self._op("v gradient", ("v.grad_all", each, c, scores))
        gone = ["weights_cast", "v.all", ("d_out", scores)]
        self._op("weights gradient", ("d_weights", square, c, scores), gone=gone)
        self._op("weights gradient cast", ("d_weights32", square, 4, eager * autocast), gone=[("d_weights", autocast)])
        width = c * fp16 + p * (1 - fp16)
        gone = ["weights", ("d_weights", full), "d_weights32"]
        self._op("softmax backward", ("d_softmax", square, width, scores), gone=gone)
        narrowed = autocast * (1 - fp16)
        self._op("scores gradient cast", ("d_masked", square, c, eager * narrowed), gone=[("d_softmax", narrowed)])
        gone = ["future", "d_masked", ("d_softmax", eager * (1 - narrowed))]
        self._op("mask backward", ("d_scaled", square, c, eager), gone=gone)
        self._op("scale backward", ("d_scores", square, c, eager), gone=["d_scaled"])
        self._op("k gradient", ("k.grad_all", each, c, scores))
        gone = ["d_scores", ("d_softmax", math), "q.copy", ("k.all", eager), "k.root", ("q.root", 1 - copied_in)]
        gone += all_turned(scores, scores) if self._selective else turned("q", eager * (1 - copied_in))
        self._op("q gradient", ("q.grad_all", each, c, scores), gone=gone)
        self._op("k scale backward", ("k.grad_root", each, c, math), gone=[("k.grad_all", math)])
        self._op("v gradients added", ("v.grad_sum", t * A_kv * D, c, scores * grouped), gone=[("v.grad_all", grouped)])
        gone = ["k.grad_root", ("k.grad_all", eager * grouped)]
        self._op("k gradients added", ("k.grad_sum", t * A_kv * D, c, scores * grouped), gone=gone)
        self._op("q scale backward", ("q.grad_root", each, c, math), gone=[("q.grad_all", math)])

    def _positions_backward(self):
        """Where segments are made again, they hold cosines and sines until the first has gone."""
        if self.checkpointing == "segments":
            self._op("turns let go", gone=["cosines", "sines"])

    # The optimizer.

    def _all(self, width, count):
        pieces = [(piece, tensor.count) for tensor in TENSORS for piece in tensor.unfused or (tensor.elements,)]
        return Add(*(self.size(piece, width, there * count) for piece, there in pieces))

    @property
    def _optimized(self):
        block = [(H, 1)]
        for width in WIDTHS.values():
            block += [(H * width, 1), (width, qkv_bias)]
        block += [(A * D * H, 1), (H, 1), (H * F, 1), (H * F, 1), (F * H, 1)]
        return [(V * H, 1), *block, (H, 1), (V * H, 1 - tied)]


def _times(times, pairs):
    return [(pair, times) if isinstance(pair, str) else (pair[0], times * pair[1]) for pair in pairs]


@dataclass(frozen=True)
class LlamaKind:
    """What `Kind` is for a GPT's step: on one GPU, of one form."""

    @property
    def ledger(self):
        """The class of the ledger."""
        return LlamaLedger
