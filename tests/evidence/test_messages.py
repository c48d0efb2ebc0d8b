"""Messages that are read at their word: sizes of any digits, other devices, the host's limits, several ranks at once, long logs."""

import itertools

import pytest
from timing import ends, growth

import everybyte as eb
from everybyte.evidence import message, messages

KIB, MIB, GIB = 2**10, 2**20, 2**30
PYTORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of {capacity} of which 60.00 MiB is "
    "free. Including non-PyTorch memory, this process has 23.50 GiB memory in use. Of the allocated memory 22.80 GiB is allocated by "
    "PyTorch, and 300.00 MiB is reserved by PyTorch but unallocated."
)
MPS = ("RuntimeError: MPS backend out of memory (MPS allocated: {}, other allocations: {}, max allowed: {}). Tried to allocate {} on private "
       "pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).")  # fmt: skip


@pytest.mark.parametrize("digits", ["9" * 16, "9" * 400, "9" * 5000])
@pytest.mark.parametrize("where", ["asked", "capacity"])
def test_a_size_of_absurd_digits_is_named(digits, where):
    text = PYTORCH.format(**{"asked": "1.00 GiB", "capacity": "23.65 GiB", where: f"{digits}.00 GiB"})
    with pytest.raises(ValueError, match=r"^doctor\.text: a size of 9+.* GiB; allowed: 15 digits") as raised:
        eb.doctor(text)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("size", ["1.2.3 GiB", ".. GiB", "² GiB", "١ GiB", ". GiB"])
def test_what_is_no_size_is_none(size):
    assert message(PYTORCH.format(asked="1.00 GiB", capacity=size)).capacity is None


def test_numbers_of_gpus_and_processes_may_be_long():
    text = PYTORCH.format(asked="1.00 GiB", capacity="23.65 GiB").replace("GPU 0", f"GPU {'9' * 5000}")
    assert message(text).gpu is None and message(text + f" you tried to allocate {'9' * 5000} bytes").asked == GIB


@pytest.mark.parametrize("i", ["i", ""])
def test_mps(i):
    """PyTorch's units there are powers of 1024, under either name."""
    said = message(
        "Traceback\n" + MPS.format(f"16.91 G{i}B", f"2.77 M{i}B", f"18.13 G{i}B", f"1.28 G{i}B").replace(" ", "\n")
    )
    assert (said.kind, said.allocated, said.asked, said.allowed) == (
        "mps",
        round(16.91 * GIB),
        round(1.28 * GIB),
        round(18.13 * GIB),
    )
    assert said.process == said.allocated + round(2.77 * MIB)
    found = eb.doctor(MPS.format(f"16.91 G{i}B", f"2.77 M{i}B", f"18.13 G{i}B", f"1.28 G{i}B"))
    assert found.cause == "limit" and "18.13 GiB" in repr(found) and "1.28 GiB was asked for" in repr(found)
    assert any("HIGH_WATERMARK_RATIO" in one.what for one in found.advice)


def test_mps_without_numbers():
    assert eb.doctor("RuntimeError: MPS backend out of memory").cause == "limit"


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58",
        "THCudaCheck FAIL file=/pytorch/torch/lib/THC/generic/THCStorage.cu line=58 error=2 : out of memory",
    ],
)
def test_thc(text):
    found = eb.doctor(text)
    assert (found.message.kind, found.cause) == ("thc", "need") and "before 1.0" in repr(found) and found.advice


SLURM = "slurmstepd: error: Detected 1 oom_kill event in StepId=11300781.0. Some of the step tasks have been OOM Killed.\nsrun: error: node6156: task 0: Out Of Memory"
CGROUP = {
    SLURM: (None, None),
    "slurmstepd: error: Detected 2 oom-kill event(s) in step 3756240.batch cgroup.": (None, None),
    "srun: error: nid001277: tasks 1-3: Out Of Memory": (None, None),
    "slurmstepd: error: Job 42 exceeded memory limit (8400000 > 8388608), being killed": (8400000 * KIB, 8 * GIB),
    "Memory cgroup out of memory: Killed process 77 (python) total-vm:9kB, anon-rss:4194304kB, file-rss:0kB": (4 * GIB, None),
    "State: Terminated\nReason: OOMKilled\nExit Code: 137": (None, None),
}  # fmt: skip


@pytest.mark.parametrize("text", CGROUP)
def test_a_jobs_own_limit_of_the_hosts_memory(text):
    said, found = message(text), eb.doctor(text)
    assert (said.kind, (said.process, said.allowed), found.cause) == ("cgroup", CGROUP[text], "host")
    assert "--mem" in found.advice[0].what and "limit of its own" in repr(found)
    assert said.allowed is None or "8.01 GiB, and might have 8.00 GiB" in repr(found)


@pytest.mark.parametrize(
    "text, asked",
    [
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 4.00 GiB for an array", 4 * GIB),
        ("MemoryError", None),
    ],
)
def test_pythons_own(text, asked):
    assert (message(text).kind, message(text).asked) == ("host", asked)


def interleaved(*texts):
    return " ".join(
        word for words in itertools.zip_longest(*(t.split() for t in texts), fillvalue="") for word in words
    )


@pytest.mark.parametrize("more", ["", "\nexitcode : -9 (pid: 8)\nSignal 9 (SIGKILL) received by PID 8"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_that_write_at_once_are_not_the_hosts(ranks, more):
    text = interleaved(*(PYTORCH.format(asked=f"{n}.50 GiB", capacity="23.65 GiB") for n in range(1, ranks + 1)))
    with pytest.raises(ValueError, match="not in one piece, as where several ranks write at once: give the log of one"):
        eb.doctor(text + more)


def test_a_message_without_its_numbers_is_not_the_hosts():
    with pytest.raises(ValueError, match="not in one piece"):
        eb.doctor("torch.cuda.OutOfMemoryError: CUDA out of memory.")


@pytest.mark.parametrize("configuration", [None, 5, b"expandable_segments:True", ["x"]])
def test_a_configuration_is_text(configuration):
    with pytest.raises(ValueError, match=r"^PYTORCH_ALLOC_CONF: .*; allowed: text"):
        eb.doctor(SLURM, configuration=configuration)


@pytest.mark.parametrize("value", ["²", "٣", "9" * 5000, "1_0"])
@pytest.mark.parametrize("name", ["max_split_size_mb", "roundup_power2_divisions"])
def test_odd_digits_in_a_configuration(name, value):
    with pytest.raises(ValueError, match=rf"^PYTORCH_ALLOC_CONF\.{name}: .*; allowed: a whole number"):
        eb.doctor(SLURM, configuration=f"{name}:{value}")


@pytest.mark.parametrize(
    "word",
    [
        "nccl ",
        "Tried to allocate ",
        "NCCL INFO comm 0x1 rank 0 nranks 8 - Init COMPLETE\n",
        "pin_memory ",
        "Process 1 has ",
    ],
)
def test_a_long_log_is_read_in_time_that_goes_with_its_length(word):
    end = PYTORCH.format(asked="1.00 GiB", capacity="23.65 GiB")
    with ends():
        with pytest.raises(ValueError):
            message(word * (400_000 // len(word)))
        assert message(word * (400_000 // len(word)) + end).asked == GIB
    assert growth(message, lambda size: word * (size // len(word)) + end, 20_000) < 32


def test_more_is_not_read(monkeypatch):
    monkeypatch.setattr(messages, "MOST", 1000)
    with pytest.raises(ValueError, match=r"doctor\.text: 1,001 characters; allowed: 1,000, such as the last lines"):
        message("x" * 1001)
