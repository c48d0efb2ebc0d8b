"""What a reader brings is read for what it is, or refused; nothing in it is run."""

import json
import pickle
from datetime import UTC, datetime

import pytest

import everybyte as eb
from everybyte import explore
from everybyte.evidence import example

LLAMA = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": True,
}  # fmt: skip
DIED = (
    'Traceback (most recent call last):\n  File "<b>train.py", line 3\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. '
    "GPU 0 has a total capacity of 79.11 GiB of which 1.50 GiB is free. Including non-PyTorch memory, this process has 77.60 GiB memory in "
    "use. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 6.00 GiB is reserved by PyTorch but unallocated."
)


def given(name, data):
    """What stands there once a file was given."""
    yours = explore.yours()
    file = {
        "name": name,
        "type": "",
        "size": len(data),
        "content": memoryview(data),
        "last_modified": datetime.now(UTC),
    }
    yours.button.value = (file,)
    return yours


def test_a_snapshot_is_shown_and_a_hostile_one_refused(tmp_path):
    yours = given("<b>.pickle", example.SNAPSHOT.read_bytes())
    assert "train.py:18" in yours.said.value and "<b>" not in yours.said.value and len(yours.children) == 4

    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "ran"), "w")

    yours = given("evil", pickle.dumps(Evil()))
    assert 'role="alert"' in yours.said.value and "names" in yours.said.value and len(yours.children) == 3
    assert not (tmp_path / "ran").exists()
    assert "choose it" in yours._repr_mimebundle_()[0]["text/plain"]


def test_a_config_is_fitted_as_the_controls_stand():
    """The README's case: Llama-3.2-1B in bf16, 2,048 tokens, on an RTX 4090: a batch of 2."""
    yours = given("Llama-3.2-1B.json", json.dumps(LLAMA).encode())
    fitting = yours.children[-1]
    assert (
        f"{eb.model('llama-3.2-1b').parameters:,} parameters" in yours.said.value
        and fitting.model.name == "Llama-3.2-1B"
    )
    assert (fitting.gpu.value, fitting.sequence.value, fitting.precision.value) == ("h100-80gb", 2048, "bf16")
    fitting.gpu.value = "rtx-4090"
    assert "Llama-3.2-1B on rtx-4090: batch 2 fits" in fitting.answer.value
    fitting.gpus.value = 8
    setup = eb.Setup(sequence=2048, precision="bf16", gpus=8, sharding="zero3")
    most = eb.fit(eb.model("llama-3.2-1b"), setup, "rtx-4090").setup.batch
    assert f"batch {most} fits" in fitting.answer.value and most > 2
    fitting.recompute.value, fitting.gpus.value, fitting.gpu.value = True, 1, "v100-16gb"
    assert "v100-16gb" in fitting.answer.value


def test_what_does_not_fit_is_said_and_the_next_setting_answers():
    fitting = given("a.json", json.dumps(LLAMA | {"num_hidden_layers": 200}).encode()).children[-1]
    fitting.gpu.value = "rtx-4090"
    assert "a on rtx-4090: does not fit" in fitting.answer.value
    fitting.gpus.value, fitting.recompute.value = 64, True
    assert "fits" in fitting.answer.value


@pytest.mark.parametrize("how", ["file", "pasted"])
def test_an_error_is_read_as_the_doctor_reads_it(how):
    if how == "file":
        said = given("slurm.out", DIED.encode()).said.value
    else:
        yours = explore.yours()
        yours.text.value = DIED
        said = yours.said.value
    assert (
        "Enough is kept free, in pieces that are too small." in said and "70.00 GiB" in said and "<b>train" not in said
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "no JSON"), (b'{"model_type": "<i>"}', "config.model_type: "), (b"hello", "allowed"), (b"", "allowed"),
        (b"\xff\xfe", "allowed"), (b"x" * (2**20 + 1), "bytes of text"), (b"\x80\x04.", "snapshot"),
    ],
)  # fmt: skip
def test_what_is_none_of_them_is_refused(data, said):
    yours = given("some", data)
    assert said in yours.said.value and 'role="alert"' in yours.said.value and len(yours.children) == 3
    assert "<i>" not in yours.said.value
