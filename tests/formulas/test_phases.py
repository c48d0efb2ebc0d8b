"""What a run does beside training, against an H200: `tools/beside/scripts/phases.py`, a Llama of four layers under `Trainer`."""

import pytest
import ran

import everybyte as eb

MODEL = ran.llama(4)
SETUP = eb.Setup(batch=8, sequence=256, precision="bf16-mixed")


@pytest.fixture(scope="module")
def seen():
    """Phase -> (the most bytes requested in it, those left after it, the most reserved)."""
    return ran.scripts()["phases"]["printed"]["FOUND"]


def test_logits_that_are_kept(seen):
    """48 sequences; the last eight are joined to the forty before: twice all of them, and 64 KB of labels and losses."""
    peak, left, _ = seen["predict, logits kept"]
    assert 0 <= peak - left - eb.formula("evaluation.joined").at(MODEL, SETUP, kept_sequences=48) < 2**17
    alone = seen["evaluate, the loss alone"][0]
    moved = seen["predict, logits moved every 2 batches"][0]  # the first batch's lie beside the second's forward
    assert 0 <= moved - alone - eb.formula("evaluation.logits").at(MODEL, SETUP, kept_sequences=8) < 2**17


def test_a_checkpoint_loaded_onto_the_gpu(seen):
    before, after = seen["save"][1], seen["load onto the GPU"][1]
    checkpoint = eb.formula("checkpoint").at(MODEL, SETUP)
    assert checkpoint == 12 * MODEL.parameters and 0 <= after - before - checkpoint < 2**12
    left = seen["load_state_dict of the optimizer"][1]  # it takes the loaded states, and drops its own
    assert 0 <= left - before - 4 * MODEL.parameters < 2**12


def test_the_host_s_memory():
    llama = eb.model("llama-3.1-70b")
    assert eb.formula("host.weights").at(llama, eb.Setup(precision="bf16"), ranks=8) == 8 * 2 * llama.parameters
    batches = eb.formula("host.batches").at(None, SETUP, ranks=8, workers=4, prefetched=2, token_columns=3)
    assert batches == 8 * 4 * 2 * 3 * 8 * 256 * 8
    assert eb.formula("checkpoint.first").at(MODEL, SETUP, ranks=8) == 8 * 12 * MODEL.parameters
