"""What a module of one's own decides itself: regions of autocast, data types, which parameters get a gradient, what it keeps."""

import sys

import grid
import hypothesis
import own_modules
import pytest
import torch
from hypothesis import strategies as st
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import everybyte as eb
from everybyte.reference import FAMILIES
from everybyte.reference.mesh.trainer import undivided
from everybyte.reference.splitting import split

ROWS = {"x": ((4096, 256), torch.float32)}
SGD = eb.Setup(optimizer="sgd", optimizer_impl="loop")


class Chain(nn.Module):
    def __init__(self, device="cuda", layers=4, width=256):
        super().__init__()
        self.layers, self.device = nn.ModuleList(nn.Linear(width, width) for _ in range(layers)), device

    def forward(self, x):
        with torch.autocast(self.device, torch.bfloat16):
            for layer in self.layers:
                x = layer(x).tanh()
        return x.float().sum()


@hypothesis.settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.seed(1)
@hypothesis.given(st.data())
@pytest.mark.filterwarnings("ignore")
def test_mem_tracker_counts_the_same_bytes(data):
    try:
        own_modules.agree(data.draw)
    except ValueError as error:
        assert "not run by PyTorch either" in str(error)


def test_a_region_of_autocast_casts():
    trace = eb.dry_run(Chain, SGD, batch=ROWS)
    weights, biases, rows = 4 * 4 * 256 * 256, 4 * 4 * 256, 2 * 4096 * 256
    after = trace.parts_at("after_forward")
    assert after["parameters"] == weights + biases
    assert after["casts"] == (weights - 4 * 256 * 256) // 2  # the first layer's input needs no gradient
    # x and its cast, what each tanh saves and the next layer is given, the fp32 copy that is summed has gone, the loss.
    assert after["activations"] == 4 * 4096 * 256 + rows + 4 * rows + 4


def test_a_region_inside_autocast_is_the_trainers_own():
    """The casts of weights stay until the outermost region is left, so that those of the first layer and the biases stand too."""
    mixed = eb.dry_run(Chain, SGD.replace(precision="bf16-mixed"), batch=ROWS)
    assert mixed.parts["casts"] == 2 * 4 * (256 * 256 + 256)
    assert "meta" not in str(mixed.operations) and eb.dry_run(lambda: Chain("meta"), SGD, batch=ROWS).peak == (
        eb.dry_run(Chain, SGD, batch=ROWS).peak
    )


class Double(torch.autograd.Function):
    """Of one's own, whose backward is a product under the autocast of its forward."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), x.t() @ grad


def test_a_function_of_ones_own_casts_in_backward_too():
    class Own(Chain):
        def forward(self, x):
            with torch.autocast("cuda", torch.bfloat16):
                return Double.apply(self.layers[0](x), self.layers[1].weight).float().sum()

    trace = eb.dry_run(lambda: Own(layers=2), SGD, batch=ROWS)
    in_backward = [
        a.bytes for a in trace.allocations if a.operation == "mm" and trace.operations[a.birth][1] == "backward"
    ]
    assert 2 * 256 * 256 in in_backward and 2 * 4096 * 256 in in_backward  # 16 bits, as in forward


def test_hugging_faces_rotary_embedding_leaves_autocast():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
    )
    seen = []
    for precision in ("fp32", "bf16-mixed"):
        trace = eb.dry_run(config, eb.Setup(batch=2, sequence=8, precision=precision))
        seen.append(
            [
                a.bytes
                for a in trace.allocations
                if a.owner == "model.rotary_emb" and a.operation in ("mul", "cos", "bmm")
            ]
        )
    assert seen[0] == seen[1] and seen[0]  # fp32 in both, as `maybe_autocast(enabled=False)` has it on a GPU


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.unused = nn.Linear(10, 10), nn.Linear(1000, 1000)

    def forward(self, x):
        return self.a(x).sum()


TEN = {"x": ((4, 10), torch.float32)}


def test_a_parameter_without_a_gradient_has_no_states():
    trace = eb.dry_run(Unused, eb.Setup(), batch=TEN)
    assert trace.parts_at("rest")["optimizer"] == 2 * 4 * 110
    assert trace.parts_at("after_backward")["gradients"] == 4 * 110
    megatron = eb.dry_run(Unused, eb.Setup(precision="bf16-megatron"), batch={"x": ((4, 10), torch.bfloat16)}).parts_at(
        "rest"
    )
    # Megatron-LM has one buffer of fp32 gradients, and copies and states, for every weight; its Adam counts steps on the GPU.
    assert megatron["gradients"] == 4 * 1_001_110 and megatron["optimizer"] == 3 * 4 * 1_001_110 + 4 * 4


@pytest.mark.parametrize("precision", ["bf16-master", "bf16-deepspeed"])
def test_copies_of_gradients_need_gradients(precision):
    with pytest.raises(ValueError, match=f"'unused.weight' of Unused gets no gradient, and precision '{precision}'"):
        eb.dry_run(Unused, eb.Setup(precision=precision), batch={"x": ((4, 10), torch.bfloat16)})


def test_what_a_first_forward_keeps_was_there_before_the_step():
    class Mask(Unused):
        kept = None

        def forward(self, x):
            if self.kept is None:
                self.kept = torch.ones(100, 100, device=x.device)
            return super().forward(x) + self.kept.sum()

    trace = eb.dry_run(Mask, eb.Setup(), batch=TEN)
    assert trace.parts_at("rest")["activations"] == 40_000


@pytest.mark.parametrize("foreach", [False, True])
def test_an_optimizer_inside_backward_keeps_its_states_and_no_gradient(foreach):
    class Inside(Unused):
        def __init__(self):
            super().__init__()
            self.inside = {p: torch.optim.AdamW([p], foreach=foreach) for p in self.a.parameters()}
            for p in self.a.parameters():
                p.register_post_accumulate_grad_hook(self.step)

        def step(self, parameter):
            self.inside[parameter].step()
            self.inside[parameter].zero_grad()

    trace = eb.dry_run(Inside, eb.Setup(), batch=TEN)
    assert trace.parts_at("rest")["optimizer"] == 2 * 4 * 110
    assert trace.parts_at("after_backward")["gradients"] == 0


class Own(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        y = self.layer(x)
        return (y.real if y.is_complex() else y).float().sum()


def weights(make, precision, dtype=torch.float32):
    trace = eb.dry_run(lambda: Own(make()), eb.Setup(precision=precision), batch={"x": ((2, 100), dtype)})
    return trace.parts_at("rest")["parameters"]


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.bfloat16, 2), (torch.float16, 2), (torch.float64, 8), (torch.complex64, 8)]
)
@pytest.mark.filterwarnings("ignore:Complex modules")
def test_a_modules_own_data_types_are_kept_or_refused(dtype, size):
    def make():
        return nn.Linear(100, 100).to(dtype)

    assert weights(make, "own", dtype) == size * 10_100
    if dtype.is_complex:  # of which a cast would keep the real part
        assert weights(make, "fp32", dtype) == size * 10_100
        return
    with pytest.raises(ValueError, match="'layer.weight' of Own is made in torch.*; allowed: precision 'own'"):
        weights(make, "fp32")
    assert (
        weights(lambda: nn.Linear(100, 100), "bf16", torch.bfloat16) == 2 * 10_100
    )  # all in fp32 is cast, as scripts do


def test_what_is_made_in_the_precisions_own_type_is_taken():
    assert weights(lambda: nn.Linear(100, 100).bfloat16(), "bf16", torch.bfloat16) == 2 * 10_100


def test_one_part_in_another_type():
    def make():
        return nn.Sequential(nn.Linear(100, 100), nn.LayerNorm(100, dtype=torch.bfloat16))

    for precision in ("fp32", "bf16", "bf16-mixed"):
        with pytest.raises(ValueError, match="is made in torch"):
            weights(make, precision)


def test_products_of_two_types_are_refused_as_pytorch_refuses_them():
    with pytest.raises(
        ValueError, match="module 'layer' gives aten.addmm.default tensors of torch.bfloat16 and torch.float32"
    ):
        weights(lambda: nn.Linear(100, 100), "bf16")


def test_own_is_for_modules_and_configs_alone():
    with pytest.raises(ValueError, match="Setup.precision: 'own' with gpt2, a Model"):
        eb.budget(eb.model("gpt2"), eb.Setup(precision="own"))
    with pytest.raises(ValueError, match="Setup.precision: 'own' with gpt2"):
        eb.dry_run(eb.model("gpt2"), eb.Setup(precision="own"))
    with pytest.raises(ValueError, match="Setup.sharding: 'zero3' with precision 'own'"):
        eb.Setup(precision="own", gpus=2, sharding="zero3")
    with pytest.raises(ValueError, match="plan.setup: precision 'own'"):
        eb.plan(Unused, eb.Setup(precision="own"), "h100-80gb", batch={"x": (("B", 10), torch.float32)})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Own(nn.LazyLinear(3)), "'layer.weight' of Own has no size before the first forward"),
        (lambda: Own(torch.jit.script(nn.Linear(10, 10))), "module 'layer' is compiled by torch.jit"),
        (lambda: sys.exit(7), r"ends the program, by sys.exit\(7\)"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_followed_is_refused_by_name(make, said):
    with pytest.raises(ValueError, match=f"dry_run.model: .*{said}.*allowed: "):
        eb.dry_run(make, eb.Setup(), batch=TEN)


class Remembers(nn.Module):
    """Keeps what it was given last, or all of it."""

    def __init__(self, most):
        super().__init__()
        self.most, self.layer, self.kept = most, nn.Linear(8, 8), []

    def forward(self, x):
        self.kept = [*self.kept, x.detach().clone()][-self.most :]
        return self.layer(x).square().mean()


def test_what_grows_from_step_to_step_has_no_steady_step():
    batch, setup = {"x": ((4, 8), torch.float32)}, eb.Setup(optimizer="sgd")
    assert eb.dry_run(lambda: Remembers(1), setup, batch=batch).phases["rest"] == 4 * (8 * 8 + 8) + 4 * 4 * 8
    with pytest.raises(ValueError, match="Remembers, whose second step finds 416 bytes and leaves 544"):
        eb.dry_run(lambda: Remembers(100), setup, batch=batch)


class Recurrent(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.layer = make(8, 8)

    def forward(self, x):
        given = self.layer(x)
        return (given if isinstance(given, torch.Tensor) else given[0]).square().mean()


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "LSTMCell", "GRUCell"])
def test_what_recurrent_kernels_keep_is_refused(kind):
    """A rehearsal without cuDNN kept 45% more for an LSTM than the operations that the CPU runs for it."""
    with pytest.raises(ValueError, match=r"runs torch\.\w+, a recurrent kernel"):
        eb.dry_run(lambda: Recurrent(getattr(nn, kind)), eb.Setup(), batch={"x": ((4, 8), torch.float32)})


class Pieces(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.layer = nn.Conv2d(8, 8, 1), nn.Linear(72, 72)

    def forward(self, x):
        pieces = self.layer(nn.functional.unfold(self.first(x), 3, padding=1).transpose(1, 2)).transpose(1, 2)
        return nn.functional.fold(pieces, (16, 16), 3, padding=1).square().mean()


def test_what_is_folded_keeps_the_memory_of_its_pieces():
    """A rehearsal on an A100 had so many bytes after forward."""
    trace = eb.dry_run(Pieces, eb.Setup(optimizer="sgd"), batch={"x": ((2, 8, 16, 16), torch.float32)})
    assert trace.phases["after_forward"] == 332_612


class Pairs(nn.Module):
    """Distances of all pairs of rows, by another norm than Euclid's; or a bilinear layer."""

    def __init__(self, bilinear=False):
        super().__init__()
        self.layer, self.pair = (
            nn.Linear(64, 64),
            nn.Bilinear(64, 64, 64) if bilinear else lambda x, y: torch.cdist(x, y, p=1.0),
        )

    def forward(self, x):
        x = self.layer(x)
        return self.pair(x, x).mean()


def test_gradients_of_distances_are_made_pair_by_pair():
    """A rehearsal on an A100 asked for so many bytes at the peak."""
    trace = eb.dry_run(Pairs, eb.Setup(optimizer="sgd"), batch={"x": ((6, 40, 64), torch.float32)})
    assert trace.peak == 2_873_608


def test_a_bilinear_layer_is_refused():
    with pytest.raises(ValueError, match=r"runs torch\.bilinear, whose products"):
        eb.dry_run(lambda: Pairs(True), eb.Setup(), batch={"x": ((6, 40, 64), torch.float32)})


def test_a_sparse_gradient_is_refused_by_name():
    with pytest.raises(ValueError, match="makes a tensor of layout torch.sparse_coo"):
        eb.dry_run(lambda: Own(nn.Embedding(10, 10, sparse=True)), eb.Setup(), batch={"x": ((4,), torch.int64)})


@pytest.mark.parametrize("around", [torch.inference_mode, torch.no_grad, FakeTensorMode])
def test_the_callers_mode_changes_nothing(around):
    alone = eb.dry_run(Unused, eb.Setup(), batch=TEN)
    with around():
        assert eb.dry_run(Unused, eb.Setup(), batch=TEN).timeline() == alone.timeline()


# Of matrices that are divided a module says how.


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(40))
def test_a_module_that_divides_itself_as_the_book_does_is_counted_as_the_books(seed):
    model, setup, rank = grid.divided(seed)
    setup = setup.replace(
        attention="flash", dropout=0.0, checkpointing="none", checkpoint_every=2, sharding_units="block"
    )

    class Own(FAMILIES[model.family]):
        def parallelize(self, mesh):
            split(self, mesh, setup.mesh)

    tokens = (setup.batch, setup.sequence), torch.int64
    if model.head_width % 4 and setup.dtypes.compute == "fp32":
        pytest.skip("no kernel takes these heads")
    trace = eb.dry_run(model, setup, rank=rank)
    own = eb.dry_run(
        lambda: Own(model, undivided(setup)), setup, batch={"tokens": tokens, "targets": tokens}, rank=rank
    )
    assert (own.peak, own.peak_at, own.phases, own.parts) == (trace.peak, trace.peak_at, trace.phases, trace.parts)


class Halves(nn.Module):
    """Two matrices, the first by columns, the second by rows."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256, bias=False), nn.Linear(256, 64, bias=False)

    def forward(self, x):  # (B, H)
        return self.down(self.up(x).relu()).square().mean()

    def parallelize(self, mesh):
        parallelize_module(self, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def test_each_gpu_has_its_part_of_a_module_that_divides_itself():
    setup = eb.Setup(batch=4, sequence=1, gpus=8, sharding="zero3", mesh=eb.Mesh(tensor=4))
    given = {"batch": (((4, 64), torch.float32),)}
    rest = eb.dry_run(Halves, setup.replace(gpus=4, sharding="none"), **given).parts_at("rest")
    assert rest["parameters"] == 4 * 2 * 64 * 256 // 4
    trace = eb.dry_run(Halves, setup, rank=5, **given)
    assert trace.parts_at("rest")["parameters"] == 4 * 2 * 64 * 256 // 8 and trace.model.parameters == 2 * 64 * 256


@pytest.mark.parametrize(
    ("make", "changes", "said"),
    [
        (lambda: nn.Linear(8, 8), {}, r"dry_run\.model: Linear with mesh tensor=4 does not say .* a module with a method parallelize"),
        (Halves, {"gpus": 8}, r"Setup\.sharding: 'none' with mesh tensor=4 .* DDP takes no weights that are divided"),
        (Halves, {"gpus": 16, "sharding": "zero3", "replicas": 2}, r"Setup\.replicas: 2 with mesh tensor=4 .* allowed: 1"),
        (Halves, {"mesh": eb.Mesh(pipeline=4), "accumulation": 4}, r"dry_run\.model: a type with mesh pipeline=4: .* allowed: "),
        (Halves, {"mesh": eb.Mesh(context=4)}, r"dry_run\.model: a type .* a function that makes a module with Mesh\(tensor=\.\.\.\) alone"),
    ],
)  # fmt: skip
def test_what_a_module_of_somebodys_own_does_not_divide_is_refused(make, changes, said):
    setup = eb.Setup(batch=4, gpus=4, mesh=eb.Mesh(tensor=4)).replace(**changes)
    with pytest.raises(ValueError, match=said):
        eb.dry_run(make, setup, batch=(((4, 8), torch.float32),))
