"""The claims: each number stands in its article, each verdict follows from its numbers, and bad claims are named."""

import inspect
import json
import os
import re
import sys
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import digest
import lints
import nbformat
import pytest
import torch
from contents import contents

import everybyte as eb
from everybyte.catalog.claims import ARTICLES, VERDICTS, Stated, read_claims
from everybyte.command import main
from everybyte.dryrun import counting
from everybyte.dryrun.modules import workload
from everybyte.dryrun.tracker import Tracker
from everybyte.published import samples
from everybyte.published.expressions import Reader
from everybyte.published.settling import disagree, settle
from everybyte.teach import articles

ROOT = Path(__file__).resolve().parents[2]
TEXTS = Path(os.environ.get("EVERYBYTE_ARTICLES", ROOT.parent / "shared" / "articles"))
NUMBERS = json.loads(digest.STORED.read_text(encoding="utf-8"))
CLAIMS = eb.claims()
CHAPTERS = contents((ROOT / "README.md").read_text(encoding="utf-8"))
WRITTEN = [e for e in CHAPTERS if e.path and lints.is_chapter(e.path)]
FIELDS = {
    "article": 1, "section": "FAQ", "claim": "c", "verdict": "holds", "chapter": "12_gradients_and_optimizers",
    "stated": "28 GB", "model": "7B", "value": "weights",
}  # fmt: skip


def claim(**changes):
    entry = {k: v for k, v in {**FIELDS, **changes}.items() if v is not None}
    return read_claims(f'["1.c"]\n{_toml(entry)}')["1.c"]


def _toml(entry):
    return "\n".join(f"{name} = {_inline(value)}" for name, value in entry.items())


def _inline(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_inline(v)}" for k, v in value.items()) + " }"
    return json.dumps(value)


def test_every_article_is_taken_claim_by_claim():
    counts = Counter(c.article for c in CLAIMS.values())
    assert len(CLAIMS) >= 120
    assert set(counts) == set(ARTICLES) and min(counts.values()) >= 30
    assert all(c.id.startswith(f"{c.article}.") for c in CLAIMS.values())
    assert len({(c.article, c.claim, c.section) for c in CLAIMS.values()}) == len(CLAIMS)


def test_every_claim_belongs_to_a_chapter_of_the_book():
    assert {c.chapter for c in CLAIMS.values()} <= {e.slug for e in CHAPTERS}


def test_every_verdict_follows_and_all_kinds_occur():
    settled = [settle(c) for c in CLAIMS.values()]
    assert {s.claim.verdict for s in settled} == set(VERDICTS)
    for s in settled:
        assert s.verdict.startswith(s.claim.verdict)
        assert s.verdict != "holds" or s.claim.sample or s.claim.source or s.stated.holds(s.computed)
        assert (s.computed is None) == (s.claim.verdict in ("not settled here", "contradicts another article"))
        assert bool(s.claim.needs) == (s.claim.verdict == "not settled here"), s.claim.id


@pytest.mark.parametrize("id", [c.id for c in list(CLAIMS.values())[::9] if not c.source])
def test_another_verdict_is_refused(id):
    for verdict in VERDICTS:
        if verdict != CLAIMS[id].verdict:
            with pytest.raises(ValueError, match=re.escape(f"claim {id}.verdict: '{verdict}', but the numbers say")):
                settle(replace(CLAIMS[id], verdict=verdict))


def test_a_document_that_settles_is_named_with_its_date_and_a_computed_claim_has_none():
    settled = [c for c in CLAIMS.values() if c.source]
    assert {c.id for c in settled} == {
        "1.fp8-hardware", "2.flash-3", "2.nvidia-smi", "3.bf16-speed", "5.accelerator-offload", "5.sft-trainer",
    }  # fmt: skip
    for c in settled:
        assert settle(c).text == c.found and settle(c).verdict == c.verdict
    fp8 = CLAIMS["1.fp8-hardware"]
    for changes, said in (
        ({"source": "https://nvidia.com"}, "an address and a date"),
        ({"source": ""}, "go together"),
        ({"verdict": "holds if"}, "a document settles alone"),
        ({"needs": "a GPU"}, "a document settles alone"),
        ({"value": "1"}, "a document settles alone"),
    ):
        with pytest.raises(ValueError, match=said):
            replace(fp8, **changes)


def test_what_documents_say_is_so_in_what_is_installed():
    """The part of it that a machine without a GPU can look up."""
    from torch.nn import attention

    assert attention.current_flash_attention_impl() is None and "FA3" in attention.list_flash_attention_impls()
    assert f"FlashAttention {attention._get_flash_version()} until" in CLAIMS["2.flash-3"].found
    assert "likely less than the amount shown in `nvidia-smi`" in torch.cuda.memory_allocated.__doc__
    accelerate = pytest.importorskip("accelerate")
    assert "cpu_offload" not in inspect.signature(accelerate.Accelerator).parameters
    assert "cpu_offload" in inspect.signature(accelerate.FullyShardedDataParallelPlugin).parameters


def test_each_stated_number_stands_in_its_section_of_the_article():
    for c in CLAIMS.values():
        found = NUMBERS[str(c.article)][c.section]
        missing = [
            n for n in map(digest.plain, c.numbers) if n.replace("_", "") not in [f.replace("_", "") for f in found]
        ]
        assert not missing, f"claim {c.id}: {missing} stand nowhere in article {c.article}, {c.section!r}"


@pytest.mark.skipif(not TEXTS.is_dir(), reason="the articles' texts are not part of the repository")
def test_the_digest_is_that_of_the_texts():
    headings = {a: {c.section for c in CLAIMS.values() if c.article == a} for a in ARTICLES}
    assert digest.digest(digest.read(TEXTS), headings) == NUMBERS


@pytest.mark.skipif(not TEXTS.is_dir(), reason="the articles' texts are not part of the repository")
def test_no_claim_is_a_sentence_of_an_article():
    texts = {a: re.sub(r"\W+", " ", t).lower() for a, t in digest.read(TEXTS).items()}
    for c in CLAIMS.values():
        words = re.sub(r"\W+", " ", c.claim).lower().split()
        runs = (" ".join(words[i : i + 7]) for i in range(len(words) - 6))
        assert not [run for run in runs if run in texts[c.article]], c.id


@pytest.mark.parametrize(
    ("stated", "inside", "outside"),
    [
        ("28 GB", [27.5, 28, 28.5], [27.4, 28.6]),
        ("28.0 GB", [27.5, 28.5], [27.4]),
        ("1.55 GB", [1.545, 1.555], [1.54, 1.56]),
        ("30 GB", [27, 33], [26.9, 33.1]),
        ("112 GB", [111.5, 112.5], [111.4, 112.6]),
        ("10 to 15 GB", [9, 12, 15.5], [8.9, 15.6]),
        ("20+ GB", [18, 1e9], [17.9]),
        ("< 1 %", [0.99], [1, 1.01]),
        ("> 1", [1.01], [1, 0.99]),
        ("= 2", [1.98, 2.02], [1.97, 2.03]),
        ("0 B", [0], [1]),
    ],
)  # fmt: skip
def test_what_rounding_allows(stated, inside, outside):
    span = Stated.read(stated)
    assert all(span.holds(Fraction(str(x))) for x in inside)
    assert not any(span.holds(Fraction(str(x))) for x in outside)


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [("14 GB", "14.4 GB", True), ("14 GB", "42 GB", False), ("20 to 30 %", "30 to 40 %", True), ("> 1", "< 1", False),
     ("20+ GB", "4 GB", False), ("20+ GB", "30 GB", True), ("= 1", "= 2", False), ("> 1", "2", True)],
)  # fmt: skip
def test_whether_two_numbers_meet(one, other, meet):
    assert Stated.read(one).meets(Stated.read(other)) == Stated.read(other).meets(Stated.read(one)) == meet


@pytest.mark.parametrize(
    ("changes", "verdict", "ratio"),
    [
        ({}, "holds", 1),
        ({"stated": "27 GB", "verdict": "off by a factor of"}, "off by a factor of 1.037", 27 / 28),
        ({"stated": "56 GB", "verdict": "off by a factor of"}, "off by a factor of 2", 2),
        ({"stated": "7 to 14 GB", "verdict": "off by a factor of"}, "off by a factor of 2", 0.5),
        ({"stated": "14 GB", "condition": "in bf16", "given": {"setup": {"precision": "bf16"}}, "verdict": "holds if"},
         "holds if in bf16", 0.5),
        ({"stated": "42 GB", "own": "12 * parameters", "verdict": "contradicts itself"}, "contradicts itself", 0.5),
        ({"value": None, "verdict": "not settled here"}, "not settled here", None),
        ({"stated": None, "unit": "GB", "recipe": "4 * 7e9"}, "holds", 1),
        ({"stated": None, "expects": "> 1", "value": "weights / 1e9"}, "holds", None),
        ({"stated": None, "value": None, "sample": "autocast"}, "holds", None),
        ({"stated": None, "value": None, "sample": "amp autocast", "verdict": "outdated API"}, "outdated API", None),
    ],
)  # fmt: skip
def test_the_rule(changes, verdict, ratio):
    found = settle(claim(**changes))
    assert found.verdict == verdict
    assert found.ratio == (ratio if ratio is None else pytest.approx(ratio))


def test_a_number_is_computed_when_asked():
    c = claim(value="symbols_are_not_code", verdict="holds")
    with pytest.raises(ValueError, match="symbols_are_not_code"):
        settle(c)
    assert settle(claim(model="llama-2-7b", stated="26.95 GB")).computed == Fraction(4 * 6738415616, 10**9)
    gpt2 = {"stated": None, "unit": "B", "model": "gpt2", "setup": {"batch": 1, "sequence": 8}}
    for witness in ("budget", "dry_run"):
        found = settle(claim(**gpt2, recipe="phase.rest", value=f"{witness}.phases.rest"))
        assert found.computed == 12 * 124439808


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"section": None}, "1.c.section: missing"),
        ({"verdict": None}, "1.c.verdict: missing"),
        ({"chapter": "13"}, "1.c.chapter: '13'"),
        ({"verdict": "true"}, "1.c.verdict: 'true' is unknown; allowed: holds"),
        ({"article": 6}, "1.c.article: 6"),
        ({"claim": ""}, "1.c.claim: empty"),
        ({"claim": 3}, "1.c.claim: 3"),
        ({"stated": "about 28 GB"}, "1.c.stated: 'about 28 GB'"),
        ({"stated": "28 gb"}, "1.c.unit: 'gb'"),
        ({"expects": "> 1"}, "1.c.expects"),
        ({"condition": "in bf16"}, "1.c.given"),
        ({"valeu": "weights"}, "1.c.field: 'valeu' is unknown; did you mean 'value'"),
        ({"against": "1.d"}, "1.c.against: '1.d'"),
        ({"setup": "fp32"}, "1.c.setup: 'fp32'"),
    ],
)
def test_a_claim_that_is_not_whole_is_named(changes, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        claim(**changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"value": "weigths"}, "1.c.value: 'weigths': expression.name: 'weigths' is unknown; did you mean 'weights'"),
        ({"value": "weights +"}, "1.c.value"),
        ({"value": "__import__('os')"}, "1.c.value"),
        ({"value": "(1).real"}, "1.c.value"),
        ({"value": "[weights]"}, "1.c.value"),
        ({"value": "weights / 0"}, "1.c.value"),
        ({"value": "layers"}, "1.c.value: 'layers': no value for layers"),
        ({"value": "budget.peak"}, "1.c.value: 'budget.peak': no model"),
        ({"value": "gpu.memory"}, "1.c.value: 'gpu.memory': no gpu"),
        ({"model": "gpt2", "value": "budget.parts.weights"}, "1.c.value"),
        ({"model": "gtp2"}, "1.c: model.name: 'gtp2' is unknown; did you mean 'gpt2'"),
        ({"setup": {"precison": "fp32"}}, "1.c: "),
        ({"setup": {"precision": "fp23"}}, "1.c: Setup.precision: 'fp23'"),
        ({"runs": {"other": {"model": "gtp2"}}}, "1.c.runs.other"),
        ({"gpu": "h1000"}, "1.c: gpu.name"),
        ({"format": "fp23"}, "1.c: "),
        ({"own": "1"}, "1.c.value: it holds"),
        ({"stated": "42 GB", "own": "42e9", "verdict": "contradicts itself"}, "1.c.own: it agrees"),
        (
            {"stated": "42 GB", "condition": "c", "given": {"setup": {"precision": "bf16"}}},
            "1.c.given: it does not hold",
        ),
        ({"stated": "42 GB", "condition": "c", "given": {"verdict": "holds"}}, "1.c.given: 'verdict' is unknown"),
        ({"value": None, "sample": "autocats"}, "1.c.sample: 'autocats' is unknown; did you mean 'autocast'"),
        ({"stated": None}, "1.c.stated: missing"),
        ({"stated": "42 GB"}, "1.c.verdict: 'holds', but the numbers say 'off by a factor of'"),
    ],
)
def test_evidence_that_is_none_is_named(changes, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        settle(claim(**changes))


def test_a_contradiction_between_articles_is_one():
    pairs = [(c, CLAIMS[c.against]) for c in CLAIMS.values() if c.against]
    assert len(pairs) >= 10
    assert all(one.article != other.article and disagree(one, other) for one, other in pairs)
    with pytest.raises(ValueError, match=r"claim 2.sixteen.against: it agrees with 3.sixteen"):
        settle(replace(CLAIMS["2.sixteen"], against="3.sixteen"))
    with pytest.raises(ValueError, match=r"claim 2.sixteen.against: 1.zero2-cost states nothing"):
        settle(replace(CLAIMS["2.sixteen"], against="1.zero2-cost"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("amp autocast", "FutureWarning: torch.cuda.amp.autocast(args...) is deprecated"),
        ("amp GradScaler", "FutureWarning: torch.cuda.amp.GradScaler(args...) is deprecated"),
        ("amp autocast, device_type", "TypeError"),
        ("zero_grad", "zero_grad() drops it"),
        ("load snapshot", "AttributeError"),
        ("dump snapshot", ""),
    ],
)
def test_what_pytorch_says(name, said):
    assert samples.outcome(name).startswith(said) and bool(samples.outcome(name)) == bool(said)


def test_without_pytorch_it_is_asked_for(monkeypatch):
    samples.outcome.cache_clear()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ValueError, match="samples.checkpoint: .* it needs PyTorch: pip install"):
        samples.outcome("checkpoint")


def test_a_first_step_has_no_states_before_its_end(monkeypatch):
    """The claim on a cold start rests on this: counted, the first step's peak is what the formulas say."""
    monkeypatch.setattr(counting, "_make_states", lambda trainer, tracker: None)
    for setup in (eb.Setup(precision="bf16-mixed"), eb.Setup(precision="bf16-mixed", batch=1, sequence=64)):
        later, states = eb.budget(eb.model("gpt2"), setup), eb.formula("optimizer.states").at(eb.model("gpt2"), setup)
        first = counting.count(
            workload(eb.model("gpt2"), setup), Tracker()
        )  # no whole step before it, which would make them
        assert first.peak == max(later.peak - states, later.phases["step"])


def test_every_sample_is_used():
    assert {c.sample for c in CLAIMS.values()} | {c.given.get("sample", "") for c in CLAIMS.values()} == {
        "",
        *samples.SAMPLES,
    }


def test_the_command(capsys):
    assert main(["claims", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [list(f) for f in found] == [
        ["id", "article", "claim", "stated", "unit", "computed", "verdict", "chapter"]
    ] * len(CLAIMS)
    assert [f["id"] for f in found] == list(CLAIMS)
    of = {f["id"]: f for f in found}
    assert of["1.weights-7b-fp32"] | {"claim": ""} == {
        "id": "1.weights-7b-fp32", "article": 1, "claim": "", "stated": 28, "unit": "GB", "computed": 26.953662464,
        "verdict": "holds if P is 7.0 B, not 6.74 B", "chapter": "11_parameters",
    }  # fmt: skip
    assert of["2.16-to-20"]["stated"] == [16, 20] and of["5.activations-total"]["stated"] == [20, None]
    assert of["1.zero2-cost"]["computed"] is of["1.zero2-cost"]["stated"] is None
    assert main(["claims"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CLAIMS) + 2


@pytest.mark.parametrize("entry", WRITTEN, ids=lambda e: e.slug)
def test_the_articles_verdicts_stand_in_one_chapter(entry):
    """47 shows them all; elsewhere a claim is met in a sentence or an exercise, never as a table of verdicts."""
    cells = nbformat.read(ROOT / entry.path, as_version=4).cells
    calls = re.findall(r"\barticles\(([^)]*)\)", "\n".join(c.source for c in cells if c.cell_type == "code"))
    if not entry.slug.startswith("47"):
        assert not calls, f"{entry.slug} calls articles({calls[0]})"
        return
    shown = {int(n) for call in calls for n in re.findall(r"\b[1-5]\b", call)} or (set(ARTICLES) if calls else set())
    assert {c.article for c in CLAIMS.values()} <= shown


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9", "9**9**9**9", "2**(2**40)", "min(1, 10**100000000)", "2**-(2**40)", "(-1)**0.5", "2**0.5", "1" * 900 + "**2",
        "(" * 400 + "1" + ")" * 400, "1" + "+1" * 5000, "2**999*2**999", "sqrt(-1)", "1/0", "1e400",
    ],
)  # fmt: skip
def test_an_expression_of_any_size_ends_in_a_sentence(expression):
    claim = next(c for c in eb.claims().values() if c.value and not c.given and not c.runs)
    with pytest.raises(ValueError, match=rf"^claim {claim.id}\.value: "):
        Reader(replace(claim, value=expression)).read("value")


def test_a_comparison_that_fails_is_plainly_false():
    assert settle(claim(stated=None, expects="> 30", unit="GB", verdict="false", value="weights")).verdict == "false"
    with pytest.raises(ValueError, match="the numbers say 'false'"):
        settle(claim(stated=None, expects="> 30", unit="GB", verdict="off by a factor of"))


def test_easy_claims_say_why_and_are_marked_where_all_stand_together():
    easy = [c for c in CLAIMS.values() if c.easy]
    assert 20 <= len(easy) <= 40 and {c.verdict for c in easy} == {"holds", "off by a factor of"}
    assert "not counted" in repr(articles("all")) and "not counted" not in repr(articles("14"))
