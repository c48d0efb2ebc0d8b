"""Ranks in a rehearsal: one process that stands for all asks for what each of several processes does, to the byte."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from everybyte.rehearsal import experts, others, rehearse_script

SCRIPT = str(Path(__file__).with_name("scripts") / "ranks.py")
THOROUGH = pytest.mark.thorough("torchrun and its processes take half a minute")
#: Of `ranks.py`: its parameters, one micro-batch of the residual stream in bytes, and cuBLAS's workspaces on Hopper.
PARAMETERS, PIECE, CUBLAS = 8 * 2 * 512 * 2048, 256 * 512 * 4, 2 * 33_554_432
#: How ranks share it -> how many they are, bytes of weights, gradients and AdamW's states for each parameter, micro-batches that a
#: rank holds between steps: its rows, and of a pipeline a buffer for each that it receives.
WAYS = {
    "ddp": (2, 4 + 4 + 4 + 8, 4),  # the gradients, and buckets of them
    "zero1": (2, 4 + 4 + 4 + 8 // 2, 4),
    "fsdp1": (2, 16 // 2, 4),
    "fsdp2": (2, 16 // 2, 4),
    "hsdp": (4, 16 // 2, 4),
    "tensor": (2, 16 // 2, 4),
    "tensor-fsdp2": (4, 16 // 4, 4),
    "experts": (2, 16, 4),
    "pipeline": (2, 16 // 2, 4 + 4),
    "pipeline-asking": (2, 16 // 2, 4 + 4),
    "pipeline-interleaved": (2, 16 // 2, 4 + 3 * 4),
}
OBJECTS = """
import os, torch
import torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
one, every, first = 0 if os.environ["ALONE"] else rank, [None] * world, [("first", rank)] * 1
dist.all_gather_object(every, {"rank": rank})
assert every == [{"rank": 0 if os.environ["ALONE"] else r} for r in range(world)]
dist.gather_object(rank, every if rank == 0 else None)
assert rank or every == [0, 0 if os.environ["ALONE"] else 1]
dist.broadcast_object_list(first)
assert first == [("first", 0)]
mine = [None]
dist.scatter_object_list(scatter_object_output_list=mine, scatter_object_input_list=["a", "b"] if rank == 0 else None)
assert mine == ["ab"[rank]]
net = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
net(torch.ones(2, 8, device="cuda")).sum().backward()
optimizer.step()
"""
NUMBERS = """
told = torch.tensor([7, 8, 9], device="cuda") if rank == 0 else torch.zeros(3, dtype=torch.int64, device="cuda")
dist.send(told, 1) if rank == 0 else dist.recv(told, 0)
assert told.tolist() == [7, 8, 9]
theirs, mine = torch.zeros(1, dtype=torch.int64, device="cuda"), torch.tensor([rank], device="cuda")
both = [dist.P2POp(dist.irecv, theirs, 1 - rank), dist.P2POp(dist.isend, mine, 1 - rank)]
[work.wait() for work in dist.batch_isend_irecv(both)]
assert theirs.item() == 1 - rank
"""
#: What only another rank knows -> what its error says.
WAITS = {
    "": None,
    "dist.recv_object_list(mine, src=1)": "recv_object_list waits for word of rank 1",
    "dist.broadcast_object_list([None], src=1)": "broadcast_object_list waits for word of rank 1",
    """
rows = torch.ones(64, 8, device="cuda")
sent = (rows[:2, 0] * 32).int().tolist()
dist.all_to_all_single(torch.empty(sum(sent), 8, device="cuda"), rows, sent, sent)
""": "how many rows go to each rank was read off the GPU",
}


def seen(device):
    return [device[count] for count in ("requested", "allocated")], device["phases"]


@THOROUGH
@pytest.mark.parametrize("way", WAYS)
def test_one_alone_asks_for_what_each_of_many_does(here, way):
    ranks, each, pieces = WAYS[way]
    together = rehearse_script(["torchrun", f"--nproc-per-node={ranks}", SCRIPT, way], gpus=ranks, quiet=True)
    alone = rehearse_script(["python", SCRIPT, way], gpus=ranks, alone=True, quiet=True)
    assert together.status == alone.status == 0 and [p["rank"] for p in together.processes] == [*range(ranks)]
    (mine,), devices = alone.processes[0]["devices"], [d for p in together.processes for d in p["devices"]]
    assert {p["steps"] for p in (*together.processes, *alone.processes)} == {3}
    assert seen(mine) == seen(devices[0])
    assert mine["phases"]["after_step"] == each * PARAMETERS + pieces * PIECE + CUBLAS
    if "pipeline" not in way:
        assert all(seen(device) == seen(mine) for device in devices)
    elif way != "pipeline-interleaved":
        # The first has one micro-batch more in flight: of each block its input, and four widths before and after the activation. The
        # second has its output besides, four losses and a gradient of one.
        first, second = devices
        assert first["requested"] - second["requested"] == 4 * (1 + 4 + 4) * PIECE - PIECE - 5 * 4


@THOROUGH
@pytest.mark.parametrize("stage", "123")
def test_deepspeed_alone_asks_for_what_each_of_two_does(here, stage):
    if not list(here.folder.glob("lib/python3.*/site-packages/deepspeed")):
        pytest.skip(f"deepspeed is not in {here.folder.name}: everybyte rehearse --install deepspeed")
    script = [str(Path(SCRIPT).with_name("zero.py")), stage]
    together = rehearse_script(["torchrun", "--nproc-per-node=2", *script], gpus=2, quiet=True)
    alone = rehearse_script(["python", *script], gpus=2, alone=True, quiet=True)
    assert together.status == alone.status == 0 and alone.processes[0]["steps"] == 2
    seen_of_each = [seen(process["devices"][0]) for process in (*together.processes, *alone.processes)]
    assert seen_of_each == 3 * seen_of_each[:1]


@THOROUGH
def test_processes_tell_each_other_objects_and_whole_numbers(here, tmp_path, monkeypatch):
    monkeypatch.setenv("ALONE", "")
    (script := tmp_path / "s.py").write_text(OBJECTS + NUMBERS, encoding="utf-8")
    found = rehearse_script(["torchrun", "--nproc-per-node=2", str(script)], gpus=2, quiet=True)
    assert found.status == 0 and [process["steps"] for process in found.processes] == [1, 1]


@pytest.mark.parametrize(("more", "said"), WAITS.items(), ids=["itself", "object", "broadcast", "rows"])
def test_who_is_alone_takes_others_as_itself_and_refuses_what_only_they_know(
    here, tmp_path, monkeypatch, capfd, more, said
):
    monkeypatch.setenv("ALONE", "1")
    (script := tmp_path / "s.py").write_text(OBJECTS + more, encoding="utf-8")
    found = rehearse_script(["python", str(script)], gpus=2, alone=True, quiet=True)
    assert (found.status == 0) == (said is None) and found.processes[0]["steps"] == 1
    assert (said or "") in capfd.readouterr().err


def test_experts_get_as_many_tokens_each():
    """Four experts on two ranks, six tokens for two each, by objects that stand for Megatron-LM's dispatcher and torchtitan's module."""
    notes = []

    class Dispatcher:
        drop_and_pad, num_experts, ep_size, tp_size, num_local_experts, local_expert_indices = False, 4, 2, 1, 2, [2, 3]
        config = SimpleNamespace(moe_router_topk=2)

        def preprocess(self, routing_map):
            self.input_splits, self.output_splits, self.output_splits_tp = (
                torch.zeros(n, dtype=torch.int64) for n in (2, 2, 1)
            )
            self.num_global_tokens_per_local_expert = torch.zeros(2, 2, dtype=torch.int64)
            return torch.zeros(2, dtype=torch.int64)

    def permute(tokens, routing_map, num_out_tokens=None):
        return list(others.counted)

    megatron = SimpleNamespace(MoEAlltoAllTokenDispatcher=Dispatcher, permute=permute)
    experts.in_megatron(megatron, notes.append)
    own = Dispatcher()
    assert own.preprocess(torch.ones(6, 4)).tolist() == [6, 6]
    assert own.input_splits.tolist() == own.output_splits.tolist() == [6, 6] and own.output_splits_tp.tolist() == [12]
    assert own.num_global_tokens_per_local_expert.tolist() == [[3, 3], [3, 3]]
    assert megatron.permute(None, None, num_out_tokens=12) == [12] and not others.counted
    titan = SimpleNamespace(all_to_all_single_autograd=lambda *said: said)
    experts.in_torchtitan(titan, notes.append)
    _, received, sent, _ = titan.all_to_all_single_autograd(torch.ones(13, 8), [0, 0], [0, 0], None)
    assert (received, sent) == ([7, 7], [7, 6]) and set(notes) == {experts.SAID}
