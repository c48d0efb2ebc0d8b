"""A module of your own in a dry run: counted as the reference is, and told clearly what it cannot do there."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import everybyte as eb
from everybyte.dryrun import Counted
from everybyte.reference import GPT

SMALL = eb.Model(name="small", layers=2, width=48, heads=3, vocabulary=101, positions=40)
SETUP = eb.Setup()
TOKENS = (2, 8), torch.int64
BATCH = {"x": torch.ones(4, 6), "labels": ((4,), torch.int64)}


class Net(nn.Module):
    """One layer, and a place to do something else."""

    def __init__(self, between=lambda x: x, output=lambda loss: loss):
        super().__init__()
        self.layer, self.between, self.output = nn.Linear(6, 6), between, output
        self.head = nn.Linear(6, 5)

    def forward(self, x, labels):
        return self.output(F.cross_entropy(self.head(self.between(self.layer(x))), labels))


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp16-mixed", "bf16-master", "bf16"])
def test_the_reference_as_a_module_of_your_own_is_counted_as_the_reference(precision):
    setup = eb.Setup(batch=2, sequence=8, precision=precision, dropout=0.1)
    own = eb.dry_run(lambda: GPT(SMALL, setup), setup.replace(dropout=0.0), batch={"tokens": TOKENS, "targets": TOKENS})
    reference = eb.dry_run(SMALL, setup)
    assert own.model == Counted("GPT", SMALL.parameters)
    assert (own.phases, own.peak, own.peak_at, own.parts) == (
        reference.phases, reference.peak, reference.peak_at, reference.parts,
    )  # fmt: skip
    assert own.timeline() == reference.timeline()
    assert own.as_dict()["model"] == {"name": "GPT", "parameters": SMALL.parameters}


def test_what_a_small_net_keeps_is_counted_by_hand():
    trace = eb.dry_run(Net, eb.Setup(optimizer="sgd"), batch=BATCH)
    parameters = 4 * (6 * 6 + 6 + 5 * 6 + 5)
    assert trace.phases["rest"] == parameters
    after = trace.parts_at("after_forward")
    assert after["activations"] == 4 * (4 * 6) * 2  # x, and the layer's output
    assert after["loss"] == 4 * (4 * 5 + 1 + 1) + 8 * 4  # log-probabilities, the total weight, the loss; the labels


@pytest.mark.parametrize(
    "batch",
    [
        BATCH,
        (torch.ones(4, 6), torch.ones(4, dtype=torch.int64)),
        [((4, 6), torch.float32), (torch.Size([4]), torch.int64)],
        {"x": torch.empty(4, 6, device="meta"), "labels": torch.zeros(4, dtype=torch.int64)},
    ],
)
def test_a_batch_is_described_by_examples_or_by_shapes(batch):
    assert eb.dry_run(Net, SETUP, batch=batch).peak == eb.dry_run(Net, SETUP, batch=BATCH).peak


def test_an_object_with_the_loss_is_as_good_as_the_loss():
    class Output:
        def __init__(self, loss):
            self.loss = loss

    assert eb.dry_run(lambda: Net(output=Output), SETUP, batch=BATCH).peak == eb.dry_run(Net, SETUP, batch=BATCH).peak


def test_frozen_parameters_have_neither_gradients_nor_states():
    def half():
        net = Net()
        net.layer.requires_grad_(False)
        return net

    for precision in ("fp32", "bf16-master", "fp16-mixed"):
        x = (4, 6), torch.bfloat16 if precision == "bf16-master" else torch.float32
        trace = eb.dry_run(half, eb.Setup(precision=precision), batch=BATCH | {"x": x})
        trained = 5 * 6 + 5
        numbers = 2 * trained + (trained if precision == "bf16-master" else 0)
        states = trace.parts_at("rest")["optimizer"] - (8 if precision == "fp16-mixed" else 0)  # the scale, its tracker
        assert states == 4 * numbers
        assert trace.parts_at("after_backward")["gradients"] == trained * (2 if precision == "bf16-master" else 4)


def note(error):
    return "\n".join(getattr(error.value, "__notes__", []))


@pytest.mark.parametrize(
    ("model", "batch", "said"),
    [
        (lambda: nn.Module(), BATCH, "dry_run.model: Module has no parameter to train"),
        (lambda: Net().requires_grad_(False), BATCH, "dry_run.model: Net has no parameter to train"),
        (lambda: 3, BATCH, "dry_run.model: it made a int; allowed: a function that makes a torch.nn.Module"),
        (Net(), BATCH, "dry_run.model: a Net, made already; allowed: a function"),
        ("gpt2", BATCH, "dry_run.model: 'gpt2'; allowed: an everybyte Model, .*eb.model\\('gpt2'\\)"),
        (Net, None, "dry_run.batch: None; allowed with a module of your own"),
        (Net, {}, "dry_run.batch: a dict without a tensor"),
        (Net, 3, "dry_run.batch: a int without a tensor"),
        (SMALL, BATCH, "dry_run.batch: a dict with small; allowed: None"),
        (lambda: Net(output=lambda loss: None), BATCH, "the forward of Net returned a NoneType; allowed: the loss"),
        (
            lambda: Net(output=lambda loss: loss.expand(2)),
            BATCH,
            r"returned a tensor of shape \(2,\); allowed: the loss",
        ),
        (lambda: Net(output=lambda loss: loss.detach()), BATCH, "the loss of Net depends on none of its parameters"),
    ],
)
def test_what_cannot_be_run_is_refused_in_words(state, model, batch, said):
    before = state()
    with pytest.raises(ValueError, match=said):
        eb.dry_run(model, SETUP, batch=batch)
    assert state() == before


@pytest.mark.parametrize("place", ["parameter", "buffer"])
def test_a_module_on_another_device_is_refused_by_the_name_of_its_tensor(place):
    def make():
        net = Net()
        if place == "parameter":
            net.head = nn.Linear(6, 5, device="cpu")
        else:
            net.layer.register_buffer("scale", torch.ones(1, device="cpu"))
        return net

    name = {"parameter": "head.weight", "buffer": "layer.scale"}[place]
    with pytest.raises(ValueError, match=f"dry_run.model: {place} '{name}' of Net is on device cpu; allowed: meta"):
        eb.dry_run(make, SETUP, batch=BATCH)


@pytest.mark.parametrize(
    ("between", "operation"),
    [
        (lambda x: x if x.sum() > 0 else -x, "_local_scalar_dense"),
        (lambda x: x * x.max().item(), "_local_scalar_dense"),
        (lambda x: x[x[:, 0] > 0], "index"),
        (lambda x: x + x.nonzero().size(0), "nonzero"),
        (lambda x: x + x.unique().numel(), "_unique2"),
        (lambda x: x.cpu(), "_to_copy"),
        (lambda x: x if torch.equal(x, x) else -x, "equal"),
        (lambda x: x.repeat_interleave(x[:, 0].long(), 0), "repeat_interleave"),
    ],
)
def test_a_module_that_needs_values_is_told_which_operation_does(state, between, operation):
    before = state()
    with pytest.raises(
        ValueError, match=rf"the model itself needs the values in a tensor \(aten\.{operation}\."
    ) as error:
        eb.dry_run(lambda: Net(between), SETUP, batch=BATCH)
    assert "everybyte.dry_run: in forward, in module 'Net', after operation" in note(error)
    assert state() == before


@pytest.mark.parametrize(
    ("between", "operation"),
    [
        (lambda x: x @ torch.ones(6, 6), "mm"),
        (lambda x: F.linear(x, torch.ones(6, 6)), "mm"),
        (lambda x: F.embedding(torch.zeros(4, dtype=torch.int64), x), "embedding"),
    ],
)
def test_a_tensor_on_the_wrong_device_in_forward_is_refused_as_cuda_would(between, operation):
    with pytest.raises(
        ValueError, match=rf"gives aten\.{operation}\.default a tensor on device cpu; allowed: .*device=x.device"
    ):
        eb.dry_run(lambda: Net(between), SETUP, batch=BATCH)


def test_numbers_and_indices_on_the_cpu_are_none_of_the_gpus_business():
    expected = eb.dry_run(lambda: Net(lambda x: x * 2), SETUP, batch=BATCH).peak
    assert eb.dry_run(lambda: Net(lambda x: x * torch.tensor(2.0)), SETUP, batch=BATCH).peak == expected
    eb.dry_run(lambda: Net(lambda x: x[torch.tensor([0, 1, 2, 3])]), SETUP, batch=BATCH)


class Broken(Exception):
    pass


def broken(*_):
    raise Broken("as the module says it")


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Net(), Net(broken)])

    def forward(self, x, labels):
        return sum(block(x, labels) for block in self.blocks)


def test_what_a_module_raises_says_where_it_was(state):
    before = state()
    with pytest.raises(Broken) as error:
        eb.dry_run(Nested, SETUP, batch=BATCH)
    assert str(error.value) == "as the module says it"
    assert "in forward, in module 'blocks.1', after operation 'addmm'" in note(error)
    assert state() == before


def test_a_module_that_asks_for_a_gpu_is_told_what_to_leave_out():
    for make in (lambda: Net().cuda(), lambda: nn.Linear(2, 2, device="cuda")):
        with pytest.raises(
            ValueError, match=r"^dry_run.model: what makes it asks for a GPU .*allowed: .* names no device"
        ):
            eb.dry_run(make, SETUP, batch=BATCH)


def test_a_step_that_asks_for_a_gpu_is_told_so_too():
    class Moves(Net):
        def forward(self, x, labels):
            return super().forward(x.to("cuda"), labels)

    with pytest.raises(ValueError, match=r"^dry_run.model: a step of it asks for a GPU .*allowed: .* names no device"):
        eb.dry_run(Moves, SETUP, batch=BATCH)


def test_shapes_that_do_not_fit_are_pytorchs_own_error_with_a_note():
    with pytest.raises(RuntimeError, match="size|shape") as error:
        eb.dry_run(Net, SETUP, batch={"x": torch.ones(4, 7), "labels": torch.zeros(4, dtype=torch.int64)})
    assert "in module 'layer'" in note(error)


def test_an_error_in_backward_says_so():
    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise Broken("backward")

    with pytest.raises(Broken) as error:
        eb.dry_run(lambda: Net(Backward.apply), SETUP, batch=BATCH)
    assert "everybyte.dry_run: in backward" in note(error)


class Attends(nn.Module):
    """Attention with fewer key than query heads, a mask, a norm, a stretch without autocast."""

    def __init__(self, kv_heads=4, mask=False, dropout=0.0, norm=False, off=False):
        super().__init__()
        self.kv_heads, self.mask, self.dropout, self.off = kv_heads, mask, dropout, off
        self.norm = nn.RMSNorm(64) if norm else nn.Identity()
        self.q, self.k, self.head = nn.Linear(64, 64), nn.Linear(64, 16 * kv_heads), nn.Linear(64, 10)

    def forward(self, x, labels):
        B, S, _ = x.shape
        x = self.norm(x)
        if self.off:
            with torch.autocast("cuda", enabled=False):
                x = x.float() @ torch.empty(64, 64, device=x.device)
        q = self.q(x).view(B, S, 4, 16).transpose(1, 2)
        k = self.k(x).view(B, S, self.kv_heads, 16).transpose(1, 2)
        mask = torch.ones(B, 1, S, S, dtype=torch.bool, device=x.device) if self.mask else None
        y = F.scaled_dot_product_attention(
            query=q, key=k, value=k, attn_mask=mask, dropout_p=self.dropout, is_causal=not self.mask,
            enable_gqa=self.kv_heads < 4,
        )  # fmt: skip
        return F.cross_entropy(self.head(y.transpose(1, 2).reshape(B, S, 64)).view(-1, 10), labels.view(-1))


def attends(precision="fp32", sequence=20, **options):
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    batch = {"x": ((2, sequence, 64), dtype), "labels": ((2, sequence), torch.int64)}
    return eb.dry_run(lambda: Attends(**options), eb.Setup(precision=precision, optimizer="sgd"), batch=batch)


def operations(trace):
    return [name for name, phase, _ in trace.operations if phase == "forward"]


@pytest.mark.parametrize(
    ("precision", "options", "kernel"),
    [
        ("fp32", {}, "_scaled_dot_product_efficient_attention"),
        ("bf16", {}, "_scaled_dot_product_flash_attention"),
        ("bf16-mixed", {"kv_heads": 2}, "_scaled_dot_product_flash_attention"),
        ("bf16", {"mask": True}, "_scaled_dot_product_efficient_attention"),
        ("bf16-mixed", {"mask": True}, "_scaled_dot_product_efficient_attention"),
        ("fp32", {"kv_heads": 2}, "_safe_softmax"),
        ("bf16", {"kv_heads": 2, "mask": True}, "_safe_softmax"),
        ("bf16-mixed", {"kv_heads": 1, "mask": True, "dropout": 0.1}, "_safe_softmax"),
    ],
)
def test_attention_takes_the_kernel_that_cuda_would(precision, options, kernel):
    kernels = {
        "_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention", "_safe_softmax",
    }  # fmt: skip
    assert kernels & set(operations(attends(precision, **options))) == {kernel}


@pytest.mark.parametrize(("sequence", "rows"), [(32, 32), (24, 24), (20, 24), (17, 24)])
def test_a_mask_is_added_in_the_querys_data_type_and_its_rows_padded_to_eight(sequence, rows):
    with_mask, without = (attends(sequence=sequence, mask=m).parts_at("after_forward") for m in (True, False))
    added = 4 * 2 * sequence * rows  # kept: the added mask, one for all heads
    assert with_mask["activations"] - without["activations"] == added


class Kept(nn.Module):
    """Attention of q, k and v (2, 4, 40, 16) by `attend`, in whatever data type."""

    def __init__(self, attend):
        super().__init__()
        self.attend, self.qkv, self.out = attend, nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x):
        q, k, v = self.qkv(x).view(2, -1, 3, 4, 16).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(q, k, v).transpose(1, 2).reshape(2, -1, 64)).float().square().mean()


def under(*backends):
    def attend(*given):
        with sdpa_kernel(list(backends)):
            return F.scaled_dot_product_attention(*given, is_causal=True)

    return attend


def masked(*shape, of=None):
    def attend(q, k, v):
        mask = torch.zeros(of or shape, dtype=q.dtype, device=q.device)[tuple(slice(n) for n in shape)]
        return F.scaled_dot_product_attention(q, k, v, mask)

    return attend


#: Attention -> in fp32 and in bf16: live bytes after forward and at most in it, of a rehearsal on an A100 with PyTorch 2.13. The
#: sequence is 40.
REHEARSED = {
    "MATH": (under(SDPBackend.MATH), (240644, 331844), (186884, 331520)),
    "EFFICIENT_ATTENTION": (under(SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH), (191492, 211972), (107012, 127492)),
    "a mask of whole rows": (masked(40, 40), (197892, 218372), (110212, 130692)),
    "a mask of odd rows": (masked(2, 1, 40, 40, of=(2, 1, 40, 43)), (206852, 227332), (114692, 135172)),
    "a slice of an aligned mask": (masked(2, 1, 40, 40, of=(2, 1, 64, 64)), (224260, 244740), (123396, 143876)),
    "rows at no multiple": (masked(40, 40, of=(60, 60)), (199172, 219652), (110852, 131332)),
    "causal, with fewer queries": (lambda q, k, v: F.scaled_dot_product_attention(q[:, :, :20], k, v, is_causal=True), (169988, 180228), (90628, 100868)),
    "one head for all, unsaid": (lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :1], v[:, :1]), (240644, 325444), (186884, 294400)),
    "grouped heads": (lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], is_causal=True, enable_gqa=True), (240644, 372804), (106268, 126748)),
    "one sequence for all": (lambda q, k, v: F.scaled_dot_product_attention(q, k[:1], v[:1]), (240644, 325444), (186884, 304640)),
    "columns stored together": (lambda q, k, v: F.scaled_dot_product_attention(q.mT.contiguous().mT, k, v), (240644, 325444), (186884, 314880)),
    "no batch": (lambda q, k, v: F.scaled_dot_product_attention(q[0], k[0], v[0]).expand(2, -1, -1, -1), (235524, 256004), (130564, 183204)),
    "odd heads, dropout": (lambda q, k, v: F.scaled_dot_product_attention(q[..., 1:], k[..., 1:], v, dropout_p=0.1), (302084, 384004), (248324, 382720)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", REHEARSED)
def test_what_attention_keeps_is_what_cuda_was_asked_for(name, dtype):
    attend, *rehearsed = REHEARSED[name]
    precision = "fp32" if dtype is torch.float32 else "bf16"
    trace = eb.dry_run(
        lambda: Kept(attend), eb.Setup(precision=precision, optimizer="sgd"), batch={"x": ((2, 40, 64), dtype)}
    )
    end = trace.marks["after_forward"]
    counted = trace.phases["after_forward"], max(trace.live[1 : end + 1])
    assert counted == rehearsed[dtype is torch.bfloat16]


def test_where_no_kernel_fits_the_scores_exist_in_fp32():
    trace = attends(sequence=128, kv_heads=2)
    scores = 4 * 2 * 4 * 128 * 128
    assert sum(a.bytes == scores for a in trace.owners(trace.marks["after_forward"])) == 1
    assert trace.peak >= 2 * scores


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
def test_an_rms_norm_is_one_kernel_that_keeps_one_number_a_row(precision):
    plain, normed = (attends(precision, norm=n) for n in (False, True))
    assert "pow" not in operations(normed)
    rows, width = 2 * 20, 2 if precision == "bf16" else 4
    kept = {n: t.parts_at("after_forward")["activations"] for n, t in (("plain", plain), ("normed", normed))}
    # Its output, where a matrix product keeps that itself; under autocast that one keeps a 16-bit copy of it, as before.
    output = 0 if precision == "bf16-mixed" else rows * 64 * width
    assert kept["normed"] - kept["plain"] == output + rows * 4


def test_autocast_can_be_switched_off_for_a_while():
    trace = attends("bf16-mixed", off=True)
    names = operations(trace)
    assert names[: names.index("mm")].count("_to_copy") == 0


def test_what_autocast_does_with_a_smoothed_loss_is_refused_and_not_guessed():
    class Smoothed(Net):
        def forward(self, x, labels):
            return F.cross_entropy(self.layer(x), labels, label_smoothing=0.1)

    class Soft(Net):
        def forward(self, x, labels):
            return F.cross_entropy(self.layer(x), x)

    for net, said in ((Smoothed, "label_smoothing: 0.1"), (Soft, "target: probabilities")):
        with pytest.raises(ValueError, match=f"cross_entropy.{said}"):
            eb.dry_run(net, eb.Setup(precision="bf16-mixed"), batch=BATCH)
        assert eb.dry_run(net, eb.Setup(precision="fp32"), batch=BATCH).peak > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"attention": "eager"}, {"dropout": 0.1}, {"loss": "chunked"}, {"checkpointing": "full"}, {"checkpointing": "operations"},
    ],
    ids=str,
)  # fmt: skip
def test_what_a_module_decides_itself_is_refused_by_name(changes):
    ((field, value),) = changes.items()
    with pytest.raises(
        ValueError, match=rf"^Setup\.{field}: {value!r} means nothing to a module of your own, .*; allowed: "
    ):
        eb.dry_run(Net, eb.Setup(**changes), batch=BATCH)


def test_ends_have_no_names_in_a_module_of_your_own():
    setup = eb.Setup(gpus=2, sharding="zero3", sharding_units="block+ends")
    with pytest.raises(
        ValueError, match=r"^Setup\.sharding_units: 'block\+ends' with a module of your own, .*'block' or 'model'"
    ):
        eb.dry_run(Net, setup, batch=BATCH)


def test_the_trace_says_the_batch_that_was_counted():
    said = eb.dry_run(Net, eb.Setup(), batch=BATCH).as_dict()["setup"]
    assert (said["batch"], said["sequence"]) == (4, 1)
    short = eb.Setup(sequence=8)
    own = eb.dry_run(lambda: GPT(SMALL, short), eb.Setup(), batch={"tokens": TOKENS, "targets": TOKENS})
    assert (own.setup.batch, own.setup.sequence) == (2, 8)
    for field, value, given in (("batch", 3, 2), ("sequence", 16, 8)):
        with pytest.raises(
            ValueError, match=rf"^Setup\.{field}: {value}, and in the arguments .* it is {given}; allowed: {given}"
        ):
            eb.dry_run(lambda: GPT(SMALL, short), eb.Setup(**{field: value}), batch=(TOKENS, TOKENS))


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3"])
def test_a_frozen_parameter_may_be_shared_too(sharding):
    def frozen():
        net = Net()
        net.layer.requires_grad_(False)
        return net

    setup = eb.Setup(gpus=2, sharding=sharding)
    part, whole = (eb.dry_run(make, setup, batch=BATCH).parts_at("after_backward") for make in (frozen, Net))
    assert part["parameters"] == whole["parameters"] or sharding == "zero1"
    assert part["optimizer"] < whole["optimizer"] and part["gradients"] < whole["gradients"]


class Scores(nn.Module):
    """A language model whose head is called as its author likes."""

    def __init__(self, name, own_loss=False):
        super().__init__()
        self.token, self.up = nn.Embedding(331, 16), nn.Linear(16, 16)
        self.name, self.own_loss = name, own_loss
        self.add_module(name, nn.Linear(16, 331))
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, tokens):
        x = self.token(tokens)
        x = getattr(self, self.name)(x + F.gelu(self.up(x))).float().flatten(0, 1)
        return self.criterion(x, tokens.flatten()) if self.own_loss else F.cross_entropy(x, tokens.flatten())


@pytest.mark.parametrize("own_loss", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16"])
def test_the_loss_is_known_by_what_it_is_given_and_not_by_a_name(precision, own_loss):
    setup = eb.Setup(precision=precision, optimizer="sgd", accumulation=2)
    batch = {"tokens": ((4, 32), torch.int64)}
    named, own = (eb.dry_run(lambda n=n: Scores(n, own_loss), setup, batch=batch) for n in ("head", "to_words"))
    assert own.timeline() == named.timeline() and own.phases == named.phases
    assert own.peak_at == named.peak_at == "loss backward"
    assert own.parts["loss"] >= 4 * 32 * 331 * 4 and own.by_owner()[0][1] == "loss"


def test_a_head_that_is_no_module_makes_the_loss_too():
    class Tied(Scores):
        def forward(self, tokens):
            x = self.token(tokens)
            return F.nll_loss((x @ self.token.weight.t()).flatten(0, 1).log_softmax(-1), tokens.flatten())

    trace = eb.dry_run(lambda: Tied("unused"), eb.Setup(optimizer="sgd"), batch={"tokens": ((4, 32), torch.int64)})
    assert trace.parts_at("after_forward")["loss"] == 4 * (
        4 * 32 * 331 + 1 + 1
    )  # log-probabilities; the loss, its weight
    assert trace.peak_at.startswith("loss")
