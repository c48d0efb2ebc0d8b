"""Messages of every form read into bytes, causes by hand, switches for the run; and text that is no lack of memory."""

import pickle

import pytest

import everybyte as eb
from everybyte.answers.diagnosis import CAUSES
from everybyte.command import main
from everybyte.evidence import message, reports

GIB, MIB = 2**30, 2**20
TWO = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 1 has a total capacity of {capacity} of which {free} is "
    "free. {who}Of the allocated memory {allocated} is allocated by PyTorch, {graphs}and {cached} is reserved by PyTorch but unallocated. "
    "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
SELF = "Including non-PyTorch memory, this process has {} memory in use. "


def two(asked, capacity, free, allocated, cached, who="", graphs=""):
    return TWO.format(
        asked=asked, capacity=capacity, free=free, who=who, allocated=allocated, cached=cached, graphs=graphs
    )


NEED = two("1.54 GiB", "23.65 GiB", "60.00 MiB", "22.80 GiB", "300.00 MiB", SELF.format("23.50 GiB"))
MESSAGES = {
    "need": NEED,
    "tensor": two("130206.04 GiB", "23.56 GiB", "16.57 GiB", "5.45 GiB", "1.17 GiB", SELF.format("6.97 GiB")),
    "fragmentation": two("1.54 GiB", "23.65 GiB", "100.00 MiB", "18.00 GiB", "5.00 GiB", SELF.format("23.40 GiB")),
    "others": two("2.00 GiB", "79.10 GiB", "1.00 GiB", "20.00 GiB", "0.20 GiB",
                  "Process 4242 has 57.00 GiB memory in use. " + SELF.format("20.80 GiB")),
    "outside": two("2.00 GiB", "79.10 GiB", "1.00 GiB", "50.00 GiB", "0.20 GiB", SELF.format("78.00 GiB")),
    "refused": two("2.00 GiB", "79.10 GiB", "30.00 GiB", "38.00 GiB", "1.00 GiB", SELF.format("40.00 GiB")),
    "limit": two("2.00 GiB", "79.10 GiB", "30.00 GiB", "38.00 GiB", "1.00 GiB", SELF.format("40.00 GiB") + "40.00 GiB allowed; "),
}  # fmt: skip
ONE = ("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 14.76 GiB total capacity; 12.97 GiB already allocated; "
       "7.75 MiB free; 13.61 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb")  # fmt: skip
OLDEST = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 7.93 GiB total capacity; 7.30 GiB already allocated; 4.00 MiB free; 13.40 MiB cached)"


def test_pytorch_2():
    said = message(two("256.00 MiB", "47.53 GiB", "16.88 MiB", "47.14 GiB", "57.79 MiB", "Process 365 has 47.51 GiB memory in use. ",
                       "with 1.50 GiB allocated in private pools (e.g., CUDA Graphs), "))  # fmt: skip
    assert (said.asked, said.gpu, said.capacity) == (256 * MIB, 1, round(47.53 * GIB))
    assert (said.free, said.graphs, said.others) == (round(16.88 * MIB), round(1.5 * GIB), ((365, round(47.51 * GIB)),))
    assert said.reserved == said.allocated + said.cached and said.process is None and said.form == 2


def test_pytorch_1():
    said = message(ONE)
    assert (said.form, said.gpu, said.capacity, said.allocated) == (1, 0, round(14.76 * GIB), round(12.97 * GIB))
    assert said.cached == round(13.61 * GIB) - round(12.97 * GIB) and said.free == round(7.75 * MIB)
    assert message(OLDEST).cached == round(13.4 * MIB)


#: What the numbers of each report allow to say, worked out by hand.
REPORTED = {
    "cads": "need", "girlgpt": "need", "neurolens": "tensor", "pytorch-16417": "fragmentation", "lerf": "fragmentation",
    "generateu": "fragmentation", "kaito": "fragmentation", "mask2dit": "fragmentation", "diffuman": "refused", "meshgen": "shared",
    "maddog": "fragmentation", "masking": "need", "examples": "fragmentation",
}  # fmt: skip


@pytest.mark.parametrize("name", REPORTED)
def test_what_people_reported(name):
    report = reports()[name]
    found = eb.doctor(report.text)
    assert found.cause == REPORTED[name], found
    assert "#" in report.source and found.account


def test_every_report_is_looked_at():
    assert set(reports()) == set(REPORTED)


def test_the_last_of_several_is_read_and_lines_may_break_anywhere():
    said = message("Traceback\n" + ONE + "\nDuring handling of the above:\n" + NEED.replace(" ", "\n"))
    assert said.form == 2 and said.asked == round(1.54 * GIB)


@pytest.mark.parametrize("cause", MESSAGES)
def test_causes(cause):
    found = eb.doctor(MESSAGES[cause])
    assert found.cause == cause and CAUSES[cause][1:] in repr(found)
    if cause != "tensor":
        assert sum(size for _, size in found.account) == pytest.approx(found.message.capacity, rel=0.011)
    assert found.advice and found.as_dict()["cause"] == cause


def test_in_a_container_the_process_with_a_number_is_this_one():
    found = eb.doctor(
        two(
            "256.00 MiB",
            "47.53 GiB",
            "16.88 MiB",
            "47.14 GiB",
            "57.79 MiB",
            "Process 365 has 47.51 GiB memory in use. ",
        )
    )
    assert found.cause == "need" and any("container" in text for text in found.findings)


@pytest.mark.parametrize(
    ("text", "kind", "cause"),
    [
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cublas", "library"),
        ("torch.distributed.DistBackendError: NCCL error in: x.cpp, unhandled cuda error\nFailed to CUDA malloc 33554432 bytes", "nccl", "library"),
        ("RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported", "driver", "library"),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate 411041792 bytes.", "host", "host"),
        ("exitcode : -9 (pid: 8)\nSignal 9 (SIGKILL) received by PID 8", "host", "host"),
        ("CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. Requested size: 2.00 GiB", "rejected", "limit"),
    ],
)  # fmt: skip
def test_other_memory(text, kind, cause):
    found = eb.doctor(text)
    assert (found.message.kind, found.cause) == (kind, cause) and found.advice


@pytest.mark.parametrize(
    ("text", "looks"),
    [
        ("", "nothing at all"),
        ("hello", "another kind"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "illegal access"),
        ("RuntimeError: CUDA error: device-side assert triggered", "index out of range"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x4 and 5x2)", "shapes"),
        ("KeyError: 'labels'", "Python error"),
    ],
)
def test_what_is_no_lack_of_memory_is_said(text, looks):
    with pytest.raises(ValueError, match=looks):
        eb.doctor(text)


def test_switches_for_this_run_with_bytes_and_time():
    model, setup = eb.model("gpt2"), eb.Setup(batch=32, precision="bf16-mixed")
    found = eb.doctor(NEED, model, setup, "rtx-4090")
    ranked = [one for one in found.advice if one.setup]
    assert len(ranked) >= 3 and any(one.fits for one in ranked)
    peak = eb.budget(model, setup, 512).peak
    for one in ranked:
        assert one.saves > 0 and "%" in one.costs and eb.units.text(peak - one.saves) in one.why
    fits = [one.fits for one in ranked]
    assert fits == sorted(fits, reverse=True)


def test_what_fits_by_its_tensors_and_dies_in_pieces_does_not_fit():
    model, setup = eb.model("llama-3.2-1b"), eb.Setup(batch=2, sequence=4096, precision="bf16")
    found = {one.what: one for one in eb.doctor(NEED, model, setup, "rtx-4090").advice if one.setup}
    half = found["accumulation 2 (batch 1)"]
    assert (
        half.fits is False
        and "in pieces" in half.why
        and eb.fit(model, half.setup, "rtx-4090", configuration="").value is None
    )
    assert (
        found["checkpointing full"].fits is True
        and eb.fit(model, found["checkpointing full"].setup, "rtx-4090").value >= 2
    )


def test_what_does_not_go_together():
    with pytest.raises(ValueError, match="doctor.setup"):
        eb.doctor(NEED, eb.model("gpt2"))
    with pytest.raises(ValueError, match="expandable_segments"):
        eb.doctor(NEED, configuration="expandable:True")
    with pytest.raises(ValueError, match="doctor.evidence"):
        eb.doctor(3)


def test_a_snapshot():
    segment = {"device": 0, "address": 0, "total_size": 100 * MIB, "allocated_size": 60 * MIB, "stream": 0, "segment_type": "large",
               "blocks": [{"size": 60 * MIB, "state": "active_allocated"}, {"size": 40 * MIB, "state": "inactive"}]}  # fmt: skip
    events = [{"action": "oom", "size": 30 * MIB, "device_free": 0}]
    found = eb.doctor(eb.snapshot(pickle.dumps({"segments": [segment], "device_traces": [events]})))
    assert found.cause == "fragmentation" and found.advice[0].saves == 40 * MIB


def test_a_message_is_shown_as_text():
    assert "<b>" not in eb.doctor(NEED.replace("GPU 1", "<b>GPU 1"))._repr_html_().replace("<b>The job", "")


def test_on_the_command_line(tmp_path, capsys):
    path = tmp_path / "error.txt"
    path.write_text(NEED)
    assert main(["doctor", str(path), "gpt2", "--batch", "32", "--precision", "bf16-mixed", "--gpu", "rtx-4090"]) == 0
    said = capsys.readouterr().out
    assert "The job needs more than there is" in said and "accumulation" in said
    assert main(["doctor", str(tmp_path / "none")]) == 2 and "No such file" in capsys.readouterr().err
    assert main(["doctor", str(path), "--gpu", "h200"]) == 0
    assert "Not known: which GPU it was: the message's has " in capsys.readouterr().out
    assert main(["doctor", str(path), "--batch", "32"]) == 2
    assert "doctor: --batch without a model; allowed: a name from `everybyte models`" in capsys.readouterr().err


def test_a_log_of_several_gpus_says_whose_message_was_read():
    """Each rank's error may have another cause: the last one's is answered, and the others are named."""
    one, two = (
        f"[rank{n}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU {n} has a total capacity of 79.11 GiB of "
        f"which 400.00 MiB is free. Of the allocated memory {held} is allocated by PyTorch, and {kept} is reserved by PyTorch but unallocated.\n"
        for n, asked, held, kept in (
            (0, "2.00 GiB", "70.12 GiB", "6.33 GiB"),
            (1, "512.00 MiB", "77.12 GiB", "33.00 MiB"),
        )
    )
    found = eb.doctor(one + two)
    assert found.message.gpu == 1 and "GPU 1's: GPU 0 ran out too" in str(found)
    assert "ran out too" not in str(eb.doctor(two + two)) + str(eb.doctor(one))


def test_a_loss_in_chunks_is_advised_of_code_that_has_no_formula_of_it():
    """Hugging Face's: at most the loss's part of the peak is saved. Of the book's own code the plan has chunks, with their bytes."""
    setup, said = eb.Setup(batch=2, sequence=4096, precision="bf16"), "CUDA out of memory. Tried to allocate 3.91 GiB"
    llama = eb.model("llama-3.2-1b")
    first = eb.doctor(said, model=llama, setup=setup, gpu="rtx-4090").advice[0]
    assert (first.name, first.saves, first.fits) == ("chunked loss", eb.budget(llama, setup).parts["loss"], None)
    near = eb.doctor(said, model=llama, setup=setup.replace(batch=8), gpu="rtx-4090").advice
    assert [one.fits for one in near if one.name == "chunked loss"] == [False]
    ours = eb.doctor(said, model=llama.replace(code="reference"), setup=setup, gpu="rtx-4090").advice
    assert "chunked loss" not in {one.name for one in ours}
