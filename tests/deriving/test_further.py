"""Letters of the reader's own: derived is the dry run at sizes that were not looked at, byte for byte."""

import json
import shutil
import subprocess
from functools import cache

import numpy
import pytest
import sympy
import torch
from torch import nn
from torch.nn import functional as F

import everybyte as eb
from everybyte.command import main
from everybyte.deriving.looks import inputs

FP32, MIXED = eb.Setup(precision="fp32"), eb.Setup(precision="bf16-mixed")
LABELS = {"labels": (("B",), torch.int64)}
IMAGES = {"pixel_values": (("B", 3, "R", "R"), torch.float32)} | LABELS


class Eye(nn.Module):
    """A vision transformer of one layer: patches of 16 x 16 pixels, and one token for the class."""

    def __init__(self, width=32, patch=16):
        super().__init__()
        self.patches, self.cls = nn.Conv2d(3, width, patch, stride=patch), nn.Parameter(torch.zeros(1, 1, width))
        self.mixed, self.head = nn.Linear(width, 3 * width), nn.Linear(width, 10)

    def forward(self, pixel_values, labels):
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.size(0), -1, -1), x], 1)
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.mixed(x).chunk(3, -1))
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return F.cross_entropy(self.head(x[:, 0]), labels)


class Strided(nn.Module):
    """Convolutions that halve the image, one of them without padding."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 7, stride=2, padding=3), nn.Conv2d(8, 8, 3, stride=2)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 10)

    def forward(self, pixel_values, labels):
        x = F.max_pool2d(F.relu(self.norm(self.first(pixel_values))), 3, 2, 1)
        return F.cross_entropy(self.head(F.relu(self.second(x)).mean((2, 3))), labels)


class Divided(nn.Module):
    """Patches by a reshape, which takes multiples of 14 pixels alone, and says so of the height."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(3 * 14 * 14, 32), nn.Linear(32, 10)

    def forward(self, pixel_values, labels):
        b, _, h, w = pixel_values.shape
        assert h % 14 == 0, "the height is no multiple of the patch"
        x = pixel_values.reshape(b, 3, h // 14, 14, w // 14, 14).permute(0, 2, 4, 1, 3, 5).reshape(b, -1, 3 * 14 * 14)
        return F.cross_entropy(self.head(F.gelu(self.embed(x)).mean(1)), labels)


class Reading(nn.Module):
    """Text of S tokens, beside another one of T."""

    def __init__(self):
        super().__init__()
        self.token, self.head = nn.Embedding(101, 32), nn.Linear(32, 101)
        self.reads = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, tokens, memory):
        x = self.token(tokens)
        y, _ = self.reads(x, memory, memory)
        return F.cross_entropy(self.head(x + y).flatten(0, 1), tokens.flatten())


def vit():
    """Hugging Face's own, with positions for 32 x 32 pixels that it interpolates for any other size."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8, num_labels=10
    )  # fmt: skip
    return transformers.ViTForImageClassification._from_config(config, attn_implementation="sdpa").train()


HEIGHTS = {"pixel_values": (("B", 3, "H", "W"), torch.float32)} | LABELS
TEXTS = {"tokens": (("B", "S"), torch.int64), "memory": (("B", "T", 32), torch.float32)}
#: make, setup, batch, points: batch, sequence, sizes.
CASES = {
    "patches": (Eye, FP32, IMAGES, [(1, 1, {"R": 16}), (2, 1, {"R": 31}), (5, 1, {"R": 223}), (3, 1, {"R": 500})]),
    "strides": (Strided, MIXED, IMAGES, [(1, 1, {"R": 9}), (2, 1, {"R": 33}), (7, 1, {"R": 223}), (3, 1, {"R": 130})]),
    "multiples": (
        Divided, MIXED, HEIGHTS, [(1, 1, {"H": 14, "W": 28}), (3, 1, {"H": 42, "W": 14}), (2, 1, {"H": 238, "W": 322})],
    ),
    "two texts": (
        Reading, MIXED, TEXTS, [(1, 1, {"T": 1}), (2, 33, {"T": 77}), (3, 1, {"T": 500}), (1, 300, {"T": 63})],
    ),
    "Hugging Face's ViT": (
        vit, MIXED, IMAGES | {"interpolate_pos_encoding": True},
        [(1, 1, {"R": 8}), (2, 1, {"R": 32}), (3, 1, {"R": 39}), (2, 1, {"R": 40}), (5, 1, {"R": 227})],
    ),
}  # fmt: skip


@cache
def derived(name):
    make, setup, batch, _ = CASES[name]
    return eb.derive(make, setup, batch)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_it_is_the_dry_run(name):
    make, setup, batch, points = CASES[name]
    derivation = derived(name)
    for b, s, sizes in points:
        counted = eb.dry_run(make, setup, batch=inputs(batch, b, s, **sizes))
        point = derivation.at(b, s, **sizes)
        for said in ("peak", "peak_at", "parts", "phases"):
            assert getattr(point, said) == getattr(counted, said), (b, s, sizes, said)
        assert point.timeline() == counted.timeline() and point.operations == counted.operations
        own = [sizes[letter] for letter in derivation.further]
        assert derivation.compiled()(b, s, *own) == counted.peak == derivation.fixed(**sizes).at(b, s).peak
        assert derivation.compiled(512)(b, s, *own) == derivation.at(b, s, 512, **sizes).peak
        assert (point.setup.batch, point.sizes) == (b, sizes)


def test_at_a_point_it_is_counted_again():
    derivation = derived("patches")
    counted = eb.dry_run(Eye, FP32, batch=inputs(IMAGES, 2, 1, R=40))
    assert derivation.at(B=2, R=40).on("h200").reserved == counted.on("h200").reserved
    assert eb.compare(derivation.at(batch=2, R=40), derivation.fixed(R=40).at(2)).agree


def test_what_is_padded_is_in_the_formula_and_its_expressions_are_its_numbers():
    derivation = derived("patches")
    said = str(derivation)
    assert "⌈(⌊R/16⌋² + 1)/32⌉" in said and "R from 16 to 131,072" in said and "not R 1 to 15" in said
    letters = {x.name: x for x in derivation.peak.free_symbols}
    for b, r in ((1, 17), (2, 95), (9, 224)):
        point, at = derivation.at(b, R=r), {letters["B"]: b, letters["R"]: r}
        assert derivation.peak.subs(at) == point.peak
        assert {p: sympy.sympify(e).subs(at) for p, e in derivation.parts.items()} == point.parts
    assert r"\left\lfloor{\frac{R}{16}}\right\rfloor" in derivation.latex()
    batches, sizes = numpy.array([[1], [3], [40]]), numpy.array([16, 33, 223, 1024])
    peak, _ = derivation.peaks(batches, None, R=sizes)
    assert peak.tolist() == [[derivation.at(int(b), R=int(r)).peak for r in sizes] for b in batches[:, 0]]
    rounded, _ = derivation.peaks(batches, None, 512, R=sizes)
    assert rounded[2, 3] == derivation.at(40, R=1024, rounding=512).peak


def test_javascript_says_the_same():
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js")
    derivation = derived("patches")
    points = [{"batch": b, "sequence": 1, "R": r} for b, r in ((1, 31), (2, 224), (5, 1000))]
    code = f"console.log(JSON.stringify({json.dumps(points)}.map({derivation.javascript(512)})))"
    said = subprocess.run([node, "-e", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(said) == [derivation.at(p["batch"], R=p["R"], rounding=512).peak for p in points]


def test_the_largest_size_fits_and_the_next_does_not():
    derivation, gpu = derived("patches"), eb.gpu("rtx-4090")
    unplayed = eb.Headroom(fragmentation=22 * 2**20)
    found = eb.fit(derivation, derivation.setup, gpu, "R", unplayed)
    at = [derivation.at(8, R=found.value + more, rounding=512).peak for more in (0, 1)]
    assert at[0] == found.peak <= found.usable < at[1] == found.next.peak
    assert f"R {found.value + 1:,} is" in found.why() and found.as_dict()["sizes"] == {"R": found.value}
    played = eb.fit(derivation, derivation.setup, gpu, "R")
    runs = [
        derivation.at(8, R=played.value + more).on(gpu, "", eb.Headroom().room(gpu), whole=False) for more in (0, 1)
    ]
    assert not runs[0].failed and runs[1].failed and played.value < played.expandable.value <= found.value
    assert f"R {played.value + 1:,} fits by its peak" in played.why()
    by_batch = eb.fit(derivation, derivation.setup, gpu, "batch", R=224)
    assert by_batch.value == eb.fit(Eye, FP32, gpu, batch=IMAGES, R=224).value > 1000
    small = eb.fit(
        derivation, derivation.setup, eb.Gpu(memory="700 MiB"), "R", eb.Headroom(context=700 * 2**20 - 400_000)
    )
    assert not small.fits and "R 16 is" in small.why()


def test_the_largest_multiple():
    derivation = derived("multiples").fixed(W=28)
    found = eb.fit(derivation, derivation.setup, eb.Gpu(memory="1.3 GiB"), "H")
    assert found.value % 14 == 0 and found.next.sizes == {"H": found.value + 14}
    assert found.next.peak > found.usable >= found.peak
    assert "H from 14 to 131,068, a multiple of 14" in str(derivation)
    with pytest.raises(
        ValueError, match=r"derive: batch 2, H 15, W 28 of Divided: the height is no multiple of the patch"
    ):
        derived("multiples").at(2, H=15, W=28)


def test_it_is_kept_as_it_is():
    said = json.loads(json.dumps(derived("patches").as_dict()))
    again = eb.Derivation.from_dict(said)
    assert again.as_dict() == said and again.at(3, R=99).parts == derived("patches").at(3, R=99).parts
    case, (form, *forms) = said["cases"][0], said["forms"]
    code = {"print('read')" if x == "R" else x: r for x, r in case["further"].items()}

    def cased(**changed):
        return said | {"cases": [case | changed]}

    for wrong in (
        None, {}, said | {"forms": []}, said | {"cases": []}, said | {"letters": "B"}, said | {"letters": "BR;"},
        said | {"letters": True}, said | {"refused": ["x"]}, said | {"forms": [[[1, 0, *form[0][2:]]], *forms]},
        said | {"forms": [[[1, 1, -1, 0, []]], *forms]}, cased(further=code), cased(further={}),
        cased(sequence=[1, 1, 0, True]), cased(batch=[5, 2, 1, True]), cased(moments={"after_backward": 0}),
        cased(rounded=case["rounded"][:0]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="Derivation.from_dict: .*; allowed: what Derivation.as_dict gave"):
            eb.Derivation.from_dict(wrong)


def test_the_map_is_over_any_two_letters():
    pytest.importorskip("matplotlib")
    derivation = derived("patches")
    assert "at R 16 and batch 1" in derivation.figure().alt
    assert "at batch 1 and R 16" in derivation.figure(over=("batch", "R")).alt
    for made, said in (
        (lambda: derivation.fixed(R=224).figure(), "Eye has no letter beside batch"),
        (lambda: derivation.figure(over=("R", "R")), "'R' twice"),
        (lambda: derivation.figure(over=("R", "sequence")), "figure.over: 'sequence' is unknown"),
    ):
        with pytest.raises(ValueError, match=said):
            made()


class Values(Eye):
    def forward(self, pixel_values, labels):
        return super().forward(pixel_values, labels) + pixel_values[pixel_values > 0].sum()


class Rows(Eye):
    def forward(self, pixel_values, labels):
        return super().forward(pixel_values, labels) + sum(row.sum() for row in pixel_values.unbind(2))


@pytest.mark.parametrize(
    ("make", "batch", "said"),
    [
        (Values, IMAGES, "needs the values in a tensor"),
        (Rows, IMAGES, "the letter R decides which operations run: from R 30 to 32"),
        (
            Eye,
            {"pixel_values": (("B", 3, "r", "r"), torch.float32)},
            "the letter 'r'; allowed: .* another capital letter",
        ),
        (Eye, {"pixel_values": (("B", 4, "R", "R"), torch.float32)} | LABELS, "Invalid channel dimensions"),
    ],
)
def test_what_cannot_be_derived_is_refused_by_name(make, batch, said):
    with pytest.raises((ValueError, RuntimeError), match=said):
        eb.derive(make, FP32, batch)


def test_letters_that_are_missing_or_strange_are_refused_by_name():
    derivation = derived("patches")
    for wrong, said in (
        (lambda: derivation.at(2), "derive.R: no size; allowed: R=, from 16 to 131,072"),
        (lambda: derivation.at(2, Q=3), "the letter 'Q' is none of Eye's; allowed: batch, sequence, B, S, R"),
        (lambda: derivation.at(2, B=3, R=16), "derive.batch: 2, and B 3"),
        (lambda: derivation.at(2, R=15), "batch 2, R 15 of Eye: Calculated padded input size"),
        (lambda: derivation.at(2, R=2**18), "derive.R"),
        (lambda: derivation.at(2, R=16.0), "derive.R"),
        (lambda: derivation.fixed(R=3), "derive.R: 3"),
        (lambda: derivation.fixed(T=3), "derive.letter: 'T' is unknown"),
        (lambda: eb.fit(derivation, derivation.setup, "rtx-4090", "T"), "fit.vary: 'T' is unknown"),
        (lambda: eb.plan(Eye, FP32, "t4", batch=IMAGES), "the letter 'R' has no size"),
        (lambda: eb.fit(eb.model("gpt2"), FP32, "t4", R=3), "fit: 'R' with a Model"),
    ):
        with pytest.raises(ValueError, match=said):
            wrong()


MODULE = """
import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 8, 16, stride=16)

    def forward(self, image):
        return self.a(image).mean()
"""


def test_the_command_takes_them(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MODULE)
    own = ["--module", f"{tmp_path / 'mine.py'}:Mine", "--inputs", "image=B,3,R,R:float32"]

    def said(*arguments):
        code = main([*arguments, *own, "--json"])
        shown = capsys.readouterr()
        return json.loads(shown.out) if code == 0 else shown.err

    assert "R" in said("derive")["latex"] and "R" not in said("derive", "--sizes", "R=64")["latex"]
    found = said("compare", "--batch", "3", "--sizes", "R=50")
    assert found["agree"]
    assert found["witnesses"][1]["peak"] == said("dry-run", "--batch", "3", "--sizes", "R=50")["peak"]
    assert said("fit", "--gpu", "rtx-4090", "--vary", "R")["sizes"]["R"] > 1000
    assert said("fit", "--gpu", "rtx-4090", "--sizes", "R=64")["value"] > 1000
    assert "the letter 'R' has no size" in said("dry-run")
    assert "--sizes: 'R=x'" in said("dry-run", "--sizes", "R=x")
    assert main(["dry-run", "gpt2", "--sizes", "R=3"]) == 2
