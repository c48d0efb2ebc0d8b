"""`Fit.takes`: whether a value that somebody asks for fits, beside the largest that does."""

import pytest

import everybyte as eb
from everybyte.answers.headroom import ROUNDING, Headroom

GPT2, XL = eb.model("gpt2"), eb.model("gpt2-xl")


@pytest.mark.parametrize(
    ("model", "vary", "value", "fits"),
    [(GPT2, "batch", 4, True), (GPT2, "batch", 64, False), (GPT2, "sequence", 512, True), (XL, "gpus", 1, False)],
)
def test_it_says_of_any_value_whether_that_fits(model, vary, value, fits):
    setup = eb.Setup(batch=2, sequence=1024, precision="bf16-mixed")
    found = eb.fit(model, setup.replace(gpus=2, sharding="zero3") if vary == "gpus" else setup, "rtx-4090", vary)
    other = eb.budget(model, setup.replace(**{vary: value}), ROUNDING)
    runs = not other.on("rtx-4090", "", Headroom().room(found.gpu, other.setup), whole=False).failed
    assert (runs and other.peak <= found.headroom.usable(found.gpu, other.setup)) is fits is found.takes(value)
    assert found.takes(found.value) is found.fits is True
    with pytest.raises(ValueError, match=f"Setup.{vary}: 0"):
        found.takes(0)


def test_what_fits_by_its_peak_and_runs_out_is_not_taken():
    peak = eb.budget(GPT2, eb.Setup(batch=1, sequence=1024, precision="bf16-mixed"), ROUNDING).peak
    headroom = Headroom(driver=0, context=0, workspace=0)
    setup = eb.Setup(sequence=1024, precision="bf16-mixed")
    found = eb.fit(GPT2, setup, f"{peak + 23 * 2**20} B", headroom=headroom, configuration="")
    assert found.witness.peak <= found.usable and not found.takes(1)


@pytest.mark.parametrize(("name", "window"), [("mistral-7b", 4096), ("phi-3-mini", 2047)])
def test_a_sequence_ends_at_the_window_for_which_the_reference_has_no_mask(name, window):
    """And not in a refusal of a length that nobody asked for; transformers' code has the mask."""
    model, setup = (
        eb.model(name, code="reference").replace(layers=2),
        eb.Setup(precision="bf16", checkpointing="full", sequence=512),
    )
    found = eb.fit(model, setup, "h200", "sequence")
    assert found.value == window and found.next is None and f"a window of {window:,} tokens" in found.why()
    assert eb.fit(model.replace(code="transformers"), setup, "h200", "sequence").value == model.positions
