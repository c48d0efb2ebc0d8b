"""A derived formula is the dry run, byte for byte, at points that the derivation did not see."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache as once
from functools import partial

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import everybyte as eb
from everybyte.deriving import cache
from everybyte.deriving.looks import inputs

TOKENS = {"tokens": (("B", "S"), torch.int64), "targets": (("B", "S"), torch.int64)}
GPT = eb.Model(name="small", layers=5, width=32, heads=4, vocabulary=331, positions=1024)
POINTS = [(1, 1), (1, 50), (2, 2), (3, 1), (5, 77), (4, 512), (9, 1023)]


class Small(nn.Module):
    """A model of one's own."""

    def __init__(self, layers=2):
        super().__init__()
        self.token = nn.Embedding(500, 64)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(layers))
        self.head = nn.Linear(64, 500)

    def forward(self, tokens, targets):
        x = self.token(tokens)
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


@once
def derived(**switches):
    """The small GPT's derivation, made once."""
    return eb.derive(GPT, eb.Setup(**switches), keep=False)


def same(derivation, model, setup, points, batch=None):
    for b, s in points:
        arguments = None if batch is None else inputs(batch, b, s)
        run = setup.replace(batch=b, sequence=s) if batch is None else setup
        trace = eb.dry_run(model, run, batch=arguments)
        for rounding in (1, 512):
            counted = replace(trace, rounding=rounding)
            derived = derivation.at(b, s, rounding)
            for name in ("peak", "peak_at", "parts", "phases", "host"):
                assert getattr(derived, name) == getattr(counted, name), (b, s, rounding, name)
            assert sorted(derived.by_owner()) == sorted(counted.by_owner())
            assert derived.timeline() == counted.timeline() and derived.operations == counted.operations
            assert (derived.marks, derived.live, derived.peak_operation) == (
                counted.marks,
                counted.live,
                counted.peak_operation,
            )
            assert derivation.compiled(rounding)(b, s) == counted.peak
            assert derivation.peaks([b], [s], rounding)[0].tolist() == [counted.peak]


class Padded(nn.Module):
    """The batch is padded to a multiple of 16, and where the sequence is a multiple of 48 the input is kept besides."""

    def __init__(self, by=48):
        super().__init__()
        self.token, self.layer, self.by = nn.Embedding(50, 16), nn.Linear(16, 16), by

    def forward(self, tokens):
        x = self.token(tokens)
        if self.by and x.shape[1] % self.by == 0:
            x = x.exp().exp()
        return self.layer(F.pad(x, (0, 0, 0, 0, 0, -len(x) % 16))).exp().mean()


def test_what_is_padded_is_no_constant_where_a_letter_is_one():
    batch, setup = {"tokens": (("B", "S"), torch.int64)}, eb.Setup()
    make = partial(Padded, 0)
    same(eb.derive(make, setup, batch, keep=False), make, setup, [(17, 1), (33, 1), (600, 1), (16, 2), (1, 600)], batch)


class Quarter(nn.Module):
    """A quarter of the tokens, one at least; all of them where one of batch and sequence is 1."""

    def __init__(self, axis):
        super().__init__()
        self.token, self.axis = nn.Embedding(50, 16), axis

    def forward(self, tokens):
        x = self.token(tokens).flatten(0, 1)
        if tokens.shape[self.axis] > 1:
            x = x[: max(1, len(x) // 4)]
        return x.exp().mean()


@pytest.mark.parametrize("axis", [0, 1], ids=["a single token", "a single sequence"])
def test_a_least_share_of_few_tokens_is_refused(axis):
    """One sequence of 2 tokens shows it, or more batches of single tokens: else any quotient that has the few values was said."""
    with pytest.raises(ValueError, match="the bytes of what exp makes .* are no polynomial"):
        eb.derive(partial(Quarter, axis), eb.Setup(), {"tokens": (("B", "S"), torch.int64)}, keep=False)


def test_a_course_of_multiples_that_are_no_powers_is_refused():
    with pytest.raises(ValueError, match="derive: .*(the sequence decides which operations run|goes another way)"):
        eb.derive(Padded, eb.Setup(), {"tokens": (("B", "S"), torch.int64)}, keep=False)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "switches",
    [
        {"precision": "bf16-mixed"},
        {"attention": "eager", "precision": "fp16-mixed", "dropout": 0.1},
        {"checkpointing": "full", "optimizer_impl": "fused"},
        {"precision": "bf16", "gpus": 8, "sharding": "zero3", "offload": "cpu"},
    ],
    ids=str,
)
def test_a_gpt_is_the_dry_run(switches):
    setup = eb.Setup(**switches)
    derivation = derived(**switches)
    same(derivation, GPT, setup, [(1, 1), (1, 50), (9, 1023)])
    assert "straight line to 5" in derivation.how
    b, s = derivation.checked[0][1:]
    assert f"{b} x {s}" in derivation.how


def test_the_machine_derives_the_theory():
    setup = eb.Setup(precision="bf16-mixed")
    derivation = derived(precision="bf16-mixed")
    for b, s in [(1, 8), (3, 100), (16, 1024)]:
        theory = eb.budget(GPT, setup.replace(batch=b, sequence=s))
        assert (derivation.at(b, s).peak, derivation.at(b, s).parts) == (theory.peak, theory.parts)
        assert eb.compare(derivation.at(b, s), theory).agree


def test_the_expressions_are_the_numbers():
    derivation = derived()
    B, S = (next(x for x in derivation.peak.free_symbols if x.name == name) for name in "BS")
    for b, s in POINTS:
        point = derivation.at(b, s)
        at = {B: b, S: s}
        assert derivation.peak.subs(at) == point.peak
        assert {p: e.subs(at) if hasattr(e, "subs") else e for p, e in derivation.parts.items()} == point.parts
        assert {m: e.subs(at) for m, e in derivation.phases.items()} == point.phases
    assert "S" in derivation.latex()
    assert len(repr(derivation)) < 200 and len(repr(derivation.at(2, 2))) < 200
    assert "<table>" in derivation._repr_html_() and derivation.how in str(derivation)


def test_a_module_of_ones_own_with_ceilings():
    setup = eb.Setup(precision="fp32")

    class Attending(Small):
        def forward(self, tokens, targets):
            x = self.token(tokens).unflatten(-1, (4, 16)).transpose(1, 2)
            x = F.scaled_dot_product_attention(x, x, x, is_causal=True).transpose(1, 2).flatten(-2)
            return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())

    derivation = eb.derive(Attending, setup, TOKENS)
    same(derivation, Attending, setup, [(1, 1), (1, 33), (3, 31), (2, 64), (5, 1000)], TOKENS)
    assert "ceiling" in str(derivation.peak)


def test_a_course_that_depends_on_multiples_and_a_threshold_is_followed():
    class Turning(Small):
        def forward(self, tokens, targets):
            if tokens.size(1) % 8:
                self.token(tokens).exp()
            if tokens.size(1) > 700:
                tokens = tokens + 1
            return super().forward(tokens, targets)

    setup = eb.Setup()
    same(
        eb.derive(Turning, setup, TOKENS), Turning, setup,
        [(3, 8), (2, 700), (2, 701), (2, 704), (1, 705)], TOKENS,
    )  # fmt: skip


@pytest.mark.parametrize(("model", "batch"), [(GPT, None), (Small, TOKENS)], ids=("GPT", "module"))
def test_at_a_point_the_allocator_is_simulated_by_a_dry_run(model, batch):
    setup = eb.Setup(precision="bf16-mixed")
    derivation = eb.derive(model, setup, batch, keep=False)
    said = derivation.at(3, 77).on("h200", "expandable_segments:True")
    arguments = inputs(batch, 3, 77) if batch else None
    counted = eb.dry_run(model, setup.replace(batch=3, sequence=77), batch=arguments).on(
        "h200", "expandable_segments:True"
    )
    assert (said.reserved, said.requested, said.live) == (counted.reserved, counted.requested, counted.live)
    assert derivation.at(3, 77).peak < said.requested
    with pytest.raises(ValueError, match=r"derive\.on: .* is known by its formula alone; allowed: eb\.dry_run"):
        replace(derivation, again=None).at(3, 77).on("h200")


def test_a_model_without_a_sequence():
    class Vision(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution, self.head = nn.Conv2d(3, 8, 5, stride=2), nn.Linear(8, 10)

        def forward(self, image, labels):
            return F.cross_entropy(self.head(F.relu(self.convolution(image)).mean((2, 3))), labels)

    batch = {"image": (("B", 3, 32, 32), torch.float32), "labels": (("B",), torch.int64)}
    derivation = eb.derive(Vision, eb.Setup(), batch)
    same(derivation, Vision, eb.Setup(), [(1, 1), (2, 1), (19, 1024)], batch)
    assert derivation.at(batch=4).setup.sequence == 1024
    assert eb.fit(derivation, eb.Setup(), "rtx-4090").value > 1000
    with pytest.raises(ValueError, match="vary"):
        eb.fit(derivation, eb.Setup(), "rtx-4090", "sequence")


class Reading(Small):
    def forward(self, tokens, targets):
        return super().forward(tokens if tokens.sum() else targets, targets)


class Looping(Small):
    def forward(self, tokens, targets):
        for row in tokens:
            self.token(row)
        return super().forward(tokens, targets)


@pytest.mark.parametrize(
    ("model", "batch", "said"),
    [
        (Reading, TOKENS, "needs the values in a tensor"),
        (Looping, TOKENS, "the batch decides which operations run: from batch 2 to 3"),
        (Small, None, "derive.batch: None"),
        (Small, {"tokens": (("B", "tokens"), torch.int64)}, "the letter 'tokens'"),
        (Small, {"tokens": ((2, 3), torch.int64)}, "without a letter"),
        (Small(), TOKENS, "made already"),
    ],
)
def test_bad_input_is_refused_by_name(model, batch, said):
    with pytest.raises(ValueError, match=said):
        eb.derive(model, eb.Setup(), batch)


def test_violated_conditions_are_named():
    derivation = derived()
    with pytest.raises(ValueError, match="1,025 violates 1 <= sequence <= 1,024"):
        derivation.at(1, 1025)
    with pytest.raises(ValueError, match="sequence"):
        derivation.peaks([1, 1], [5, 1025])
    for wrong in (0, 2.0, True):
        with pytest.raises(ValueError, match="batch"):
            derivation.at(wrong, 8)
    with pytest.raises(ValueError, match="rounding"):
        derivation.at(1, 1, rounding=3)


def test_arrays_are_exact_beyond_64_bits():
    setup = eb.Setup()
    derivation = eb.derive(Small, setup, TOKENS)
    grown = type(derivation)(**vars(derivation) | {"forms": tuple(_times(f, 10**13) for f in derivation.forms)})
    batches = numpy.array([3, 65_536])
    peak, where = grown.peaks(batches[:, None], numpy.array([7, 131_072]))
    assert peak.dtype == object and peak.shape == where.shape == (2, 2)
    assert peak[1, 1] == grown.at(65_536, 131_072).peak > 2**63


def _times(form, factor):
    return type(form).of({m: c * factor for m, c in form.terms})


def test_javascript_says_the_same():
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js")
    derivation = derived()
    calls = [[{"batch": b, "sequence": s} for b, s in POINTS]]
    code = f"for (const f of [{derivation.javascript()}, {derivation.javascript(512)}]) console.log(JSON.stringify({json.dumps(calls[0])}.map(f)))"
    lines = subprocess.run([node, "-e", code], capture_output=True, text=True, check=True).stdout.split()
    for line, rounding in zip(lines, (1, 512), strict=True):
        assert json.loads(line) == [derivation.at(b, s, rounding).peak for b, s in POINTS]


def test_fit_finds_the_border():
    setup = eb.Setup(precision="bf16-mixed", sequence=300)
    derivation = derived(precision="bf16-mixed")
    gpu = eb.gpu("rtx-4090")
    by_peak = eb.Headroom(fragmentation=22 * 2**20)  # set by the reader: then the allocator is not simulated
    found = eb.fit(derivation, setup, gpu, headroom=by_peak)
    assert derivation.at(found.value, 300, 512).peak <= found.usable < derivation.at(found.value + 1, 300, 512).peak
    assert found.value == eb.fit(GPT, setup, gpu, headroom=by_peak).value
    played = eb.fit(derivation, setup, gpu)
    assert played.value == eb.fit(GPT, setup, gpu).value <= played.expandable.value <= found.value
    assert found.as_dict()["value"] == found.value and "batch" in repr(found)
    own = eb.fit(Small, eb.Setup(sequence=64), gpu, batch=TOKENS)
    assert own.value > 1000
    with pytest.raises(ValueError, match="fit.setup: precision"):
        eb.fit(derivation, eb.Setup(precision="fp32"), gpu)


def test_the_map_and_the_explorer():
    pytest.importorskip("matplotlib")
    derivation = derived(precision="bf16-mixed")
    assert "optimizer step" in derivation.figure().alt
    explorer = eb.explore.model(derivation)
    values = explorer.values()
    said = sum(amount for *_, amount in explorer.kind.compute(values))
    assert said == derivation.at(values["batch"], values["sequence"]).peak


class TestCache:
    @pytest.fixture(autouse=True)
    def folder(self, monkeypatch, tmp_path):
        monkeypatch.setenv("EVERYBYTE_CACHE", str(tmp_path))
        return tmp_path

    def test_kept_and_found(self, monkeypatch):
        first = derived()
        cache.write(cache.place(GPT, eb.Setup(), None), first)
        monkeypatch.setattr("everybyte.deriving.solve", lambda *_: pytest.fail("derived again"))
        again = eb.derive(GPT, eb.Setup(batch=3))
        assert again.as_dict() == first.as_dict() | {"setup": again.setup.as_dict()}
        assert again.at(5, 77).parts == first.at(5, 77).parts and again.model == GPT

    def test_damaged(self, folder, monkeypatch):
        kept = cache.place(GPT, eb.Setup(), None)
        cache.write(kept, derived())
        whole = kept[0].read_text()
        assert cache.read(kept).as_dict() == derived().as_dict()
        found = derived()
        monkeypatch.setattr("everybyte.deriving.solve", lambda *_: found)
        for text in [
            "",
            "{}",
            "[1]",
            '{"sum": "", "derivation": {}}',
            whole[:-100],
            whole.replace("[3, 1,", "[4, 1,"),
            whole[:200] + "9" + whole[201:],
            "[" * 200_000,
            "\x80\ud800",
        ]:
            if text == whole:
                continue
            kept[0].write_bytes(text.encode(errors="surrogatepass"))
            with pytest.warns(UserWarning, match="damaged"):
                assert eb.derive(GPT, eb.Setup()).as_dict() == found.as_dict()
            assert kept[0].read_text() == whole

    @pytest.mark.skipif(sys.platform == "win32", reason="there a variable says where the cache is")
    def test_where_nobody_is_at_home_nothing_is_kept(self, monkeypatch):
        """As in a container whose user has no entry of its own."""
        import pwd

        def nobody(_):
            raise KeyError

        monkeypatch.setattr(pwd, "getpwuid", nobody)
        for name in (cache.VARIABLE, "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        found = derived()
        monkeypatch.setattr("everybyte.deriving.solve", lambda *_: found)
        assert cache.folder() is None and cache.place(GPT, eb.Setup(), None) is None
        assert eb.derive(GPT, eb.Setup()).as_dict() == found.as_dict()

    def test_another_setup_is_another_file(self):
        places = {cache.place(GPT, eb.Setup(precision=p), None)[0] for p in ("fp32", "bf16")}
        assert len(places) == 2

    def test_a_module_of_ones_own_is_not_kept(self):
        assert cache.place(Small, eb.Setup(), TOKENS) is None


def test_interrupted_it_leaves_nothing_behind(state, monkeypatch):
    before, count = state(), iter(range(100))

    def interrupt(self, **batch):
        if next(count) == 20:
            raise KeyboardInterrupt
        return original(self, **batch)

    original, Small.forward = Small.forward, interrupt
    try:
        with pytest.raises(KeyboardInterrupt):
            eb.derive(Small, eb.Setup(precision="bf16-mixed"), TOKENS)
    finally:
        Small.forward = original
    assert state() == before


class Pieces(nn.Module):
    """A layer over four pieces of the sequence; of 10 and of 13 tokens the last piece is one token."""

    def __init__(self):
        super().__init__()
        self.token, self.layer = nn.Embedding(50, 8), nn.Linear(8, 8)

    def forward(self, tokens):
        return torch.cat([self.layer(x).exp() for x in self.token(tokens).chunk(4, 1)], 1).mean()


def test_a_last_piece_of_one_token_here_and_there_is_no_formula():
    with pytest.raises(ValueError, match="the sequence decides which operations run"):
        eb.derive(Pieces, eb.Setup(optimizer="sgd"), {"tokens": (("B", "S"), torch.int64)})
