"""A run that is killed loses nothing but what came after its last whole checkpoint."""

import io
import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import everybyte as eb
from everybyte.lab import checkpoints
from everybyte.reference import GPT, Trainer
from everybyte.reference.text import text_batch

SCRIPT = Path(__file__).with_name("run_and_die.py")
MODEL = eb.Model(name="small", layers=2, width=20, heads=2, vocabulary=257, positions=24)


def train(folder, attempt, dies):
    """Two processes, to their end; their exit statuses and errors."""
    environment = os.environ | {"ATTEMPT": str(attempt)}
    there = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), str(rank), "zero3", "fp32", dies],
            stderr=subprocess.PIPE, text=True, errors="replace", env=environment,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        errors = [process.communicate(timeout=600)[1] for process in there]
    finally:
        for process in there:
            process.kill()
            process.wait()
    return [process.returncode for process in there], errors


def said(folder):
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.thorough("three pairs of processes")
def test_two_processes_one_killed_while_it_writes(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    assert train(whole, 0, "no")[0] == [0, 0]
    statuses, errors = train(killed, 0, "save")
    assert statuses[1] == -signal.SIGKILL and statuses[0] not in (0, -signal.SIGKILL)
    assert "Connection" in errors[0] or "Timed out" in errors[0]  # the other ends by itself and says why
    assert {path.name for path in (killed / "kept").iterdir()} == {"step-2", "step-4.part"}
    assert train(killed, 1, "no")[0] == [0, 0]
    for resumed, expected in zip(said(killed), said(whole), strict=True):
        assert resumed["start"] == 2
        assert resumed["losses"] == expected["losses"][2:]  # bit by bit, dropout's random numbers too
        assert resumed["weights"] == expected["weights"]
    assert [path.name for path in (killed / "kept").iterdir()] == ["step-6"]


@pytest.fixture
def one_rank(tmp_path):
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.FileStore(str(tmp_path / "store"), 1))
    yield
    dist.destroy_process_group()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "changes",
    [
        {"sharding": "zero1", "precision": "bf16-master"}, {"sharding": "zero2", "precision": "bf16-master"},
        {"sharding": "zero3", "optimizer": "momentum"}, {"precision": "fp16-mixed"}, {"optimizer": "sgd"},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_kept_is_what_is_taken_up(tmp_path, one_rank, changes):
    setup = eb.Setup(**{"batch": 2, "sequence": 16, "attention": "eager", "dropout": 0.1} | changes)

    def made(seed):
        torch.manual_seed(seed)
        return Trainer(GPT(MODEL, setup).initialize(), setup)

    first, batch, folder = made(0), text_batch(257, setup, "cpu"), tmp_path / "kept"
    assert checkpoints.load(first, folder) == 0
    inputs = [batch() for _ in range(4)]
    for i in range(2):
        first.step(lambda i=i: inputs[i])
    assert checkpoints.save(first, folder, 2).name == "step-2"
    expected = [first.step(lambda i=i: inputs[i]).item() for i in (2, 3)]
    second = made(1)
    assert checkpoints.load(second, folder) == 2
    assert [second.step(lambda i=i: inputs[i]).item() for i in (2, 3)] == expected
    with pytest.raises(ValueError, match=r"^save\.step: 2 is there already, in kept"):
        checkpoints.save(second, folder, 2)
    (folder / "step-4.part").mkdir()  # what a killed run leaves
    checkpoints.save(second, folder, 5)
    assert [path.name for path in folder.iterdir()] == ["step-5"]


@pytest.fixture
def kept(tmp_path, one_rank):
    """A folder with a checkpoint of step 1, and what makes a trainer for it."""
    setup = eb.Setup(batch=2, sequence=16, attention="eager", precision="fp16-mixed")

    def made():
        return Trainer(GPT(MODEL, setup).initialize(), setup)

    first = made()
    first.step(text_batch(257, setup, "cpu"))
    checkpoints.save(first, tmp_path / "kept", 1)
    return tmp_path / "kept", made


def written_anew(place):
    """Checksums that fit whatever stands there now: as one who made the checkpoint up would write them."""
    (place / checkpoints.SUMS).write_text(json.dumps(checkpoints._sums(place)))


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "checksums.json"])
@pytest.mark.parametrize("harm", ["flipped", "cut", "gone", "more"])
def test_a_damaged_checkpoint_is_not_taken_up(kept, name, harm):
    folder, made = kept
    path = folder / "step-1" / name
    data, middle = path.read_bytes(), path.stat().st_size // 2
    if harm == "flipped":
        path.write_bytes(data[:middle] + bytes(255 - b for b in data[middle : middle + 10]) + data[middle + 10 :])
    elif harm == "cut":
        path.write_bytes(data[:middle])
    elif harm == "more":
        path.with_name("more").write_bytes(b"")
    else:
        path.unlink()
    if (harm, name) == ("gone", "checksums.json"):
        assert checkpoints.load(made(), folder) == 0  # never whole
        return
    with pytest.raises(ValueError, match=r"^load\.folder: step-1 is not what was written: "):
        checkpoints.load(made(), folder)


def test_an_empty_folder_hides_no_whole_checkpoint(kept):
    folder, made = kept
    (folder / "step-9").mkdir()
    assert checkpoints.load(made(), folder) == 1


class Runs:
    """Of a pickle: a program that leaves a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("where", ["metadata", "object", "tensor"])
def test_nothing_in_a_checkpoint_is_run(kept, tmp_path, where):
    folder, made = kept
    place, ran = folder / "step-1", tmp_path / "ran"
    described = checkpoints._Reader(place).read_metadata()
    if where == "metadata":
        (place / ".metadata").write_bytes(pickle.dumps(Runs(str(ran))))
    else:  # PyTorch's reader unpickles what is no tensor, and what it takes for one by a safer way
        info = described.storage_data[next(index for index in described.storage_data if index.fqn == "scaler")]
        hostile = io.BytesIO()
        torch.save(Runs(str(ran)), hostile)
        if where == "object":
            described.state_dict_metadata["scaler"] = checkpoints.described.BytesStorageMetadata()
            described.storage_data[checkpoints.described.MetadataIndex("scaler")] = info
        data = (place / "__0_0.distcp").read_bytes()
        info.offset, info.length = len(data), len(hostile.getvalue())
        (place / "__0_0.distcp").write_bytes(data + hostile.getvalue())
        (place / ".metadata").write_bytes(pickle.dumps(described))
    written_anew(place)
    said = {"metadata": "it names posix.mkdir", "object": "scaler is no tensor", "tensor": "Unsupported|mkdir"}
    with pytest.raises(ValueError, match=rf"^load\.folder: step-1: (?s:.*)({said[where]})"):
        checkpoints.load(made(), folder)
    assert not ran.exists()


def test_a_checkpoint_of_another_run_is_named(kept):
    folder, _ = kept
    setup = eb.Setup(batch=2, sequence=16, attention="eager", optimizer="momentum")
    with pytest.raises(
        ValueError, match=r"^load\.folder: step-1: .*; allowed: a checkpoint of the same model and setup"
    ):
        checkpoints.load(Trainer(GPT(MODEL, setup).initialize(), setup), folder)
