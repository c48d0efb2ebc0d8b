"""What a rehearsal says of memory outside PyTorch's allocator, beside what the driver of an H200 said."""

import json
from pathlib import Path

import everybyte as eb
from everybyte.rehearsal import outside, rehearse_script

H200, MIB = eb.gpu("h200"), 2**20
RECORD = Path(__file__).resolve().parents[2] / "labs" / "records" / "scripts" / "h200.jsonl"

GROUPS = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
x = torch.ones(1000, device="cuda")
pairs, fours, quiet = (dist.new_group(ranks) for ranks in ([0, 1], [0, 2, 4, 6], [0, 3]))
dist.all_reduce(x)
dist.all_reduce(x, group=pairs)
dist.all_to_all_single(torch.empty_like(x), x, group=fours)
dist.destroy_process_group()
"""


def test_it_holds_what_the_driver_said():
    rows = next(r for r in map(json.loads, RECORD.read_text().splitlines()) if r["name"] == "outside")["printed"][
        "FOUND"
    ]
    beside = {what: used - reserved for what, used, reserved in rows}
    one = {"ranks": 1, "apart": 1, "does": ["sum"]}
    found = outside.taken(H200, [one, one])
    for what in ("a tensor", "EFFICIENT_ATTENTION"):
        assert found["context"][0] <= beside[what] <= found["context"][1]
    assert found["nccl"] == 2 * (beside["NCCL, a second group"] - beside["cuFFT"],)


def test_groups_that_communicate_are_in_it(here, tmp_path):
    (tmp_path / "train.py").write_text(GROUPS)
    found = rehearse_script(["python", str(tmp_path / "train.py")], gpus=8, alone=True, quiet=True)
    groups = {group["ranks"]: group for group in found.processes[0]["groups"]}
    assert sorted(groups) == [2, 4, 8] and groups[4] == {"ranks": 4, "apart": 2, "does": ["exchange"]}
    exchange = 32 * 3 * 12 * MIB  # channels, peers
    least = 168 * MIB + 2 * 24 * 12 * MIB + exchange
    assert found.as_dict()["outside"] == {
        "context": (522 * MIB, 758 * MIB),
        "nccl": (least, least + 24 * 12 * MIB + 256 * MIB),
    }
    assert "\nOutside PyTorch's bytes: CUDA's context, 522.00 MiB to 758.00 MiB" in str(
        found
    ) and "(ranks: 8, 2, 4)" in str(found)
