"""Convolutions in a rehearsal: their results lie as PyTorch says, and what cuDNN works in is what an H200 took, but for split sums."""

import json
from pathlib import Path

from everybyte.rehearsal import rehearse_script

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "labs" / "records" / "scripts" / "h200.jsonl"
MEASURED = ROOT / "tools" / "beside" / "scripts" / "convolutions.py"

#: Every kind of convolution: on the CPU too, where the same layers give the same shapes.
KINDS = """
import itertools, torch
from torch import nn
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
KINDS = [(nn.Conv1d, dict(padding=1, stride=2)), (nn.Conv1d, dict(groups=8)), (nn.Conv2d, dict(dilation=2)), (nn.Conv2d, dict(groups=8)),
         (nn.Conv2d, dict(groups=2, bias=False)), (nn.Conv3d, dict(stride=2)), (nn.ConvTranspose1d, dict(stride=2)),
         (nn.ConvTranspose2d, dict(stride=2, output_padding=1)), (nn.ConvTranspose3d, {})]
for (kind, more), last, dtype in itertools.product(KINDS, (False, True), (torch.float32, torch.bfloat16, torch.float64)):
    layer = kind(8, 16, 3, dtype=dtype, **more)
    x = torch.zeros(2, 8, *[9] * (layer.weight.dim() - 2), dtype=dtype)
    layout = LAST.get(x.dim()) if last else None
    on = layer.to("cuda", memory_format=layout), x.to("cuda", memory_format=layout or torch.preserve_format).requires_grad_()
    found = on[0](on[1])
    lies = layout if layout and dtype != torch.float64 else torch.contiguous_format
    for one in (found, *torch.autograd.grad(found.sum(), [on[1], layer.weight])):
        assert one.is_contiguous(memory_format=lies), (kind, more, layout, dtype, one.stride())
    assert found.shape == layer.cpu()(x).shape and found.dtype == dtype
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():  # as compiled code asks
    found = nn.Conv2d(8, 16, 3, device="cuda")(torch.zeros(2, 8, 9, 9, device="cuda").to(memory_format=LAST[4]))
    assert found.is_contiguous(memory_format=LAST[4])
for bad in (torch.zeros(2, 3, 9, 9), torch.zeros(2, 8, 2, 2), torch.zeros(2, 8, 9, 9, dtype=torch.half)):
    try:
        nn.Conv2d(8, 16, 3).cuda()(bad.cuda())
    except RuntimeError:
        continue
    raise AssertionError(bad.shape)
nn.Conv2d(8, 16, 3).cuda()(torch.zeros(0, 8, 9, 9, device="cuda", requires_grad=True)).sum().backward()
"""


def test_each_kind_gives_what_pytorch_gives(here, tmp_path):
    (tmp_path / "train.py").write_text(KINDS)
    found = rehearse_script(["python", str(tmp_path / "train.py")], quiet=True)
    assert found.status == 0 and any("convolutions are cuDNN's" in said for said in found.unknown)


def test_what_they_work_in_is_what_an_h200_took(here, capfd):
    rehearse_script(["python", str(MEASURED)])
    rows = json.loads(capfd.readouterr().out.split("FOUND")[1])
    record = next(r for r in map(json.loads, RECORD.read_text().splitlines()) if r["name"] == "convolutions")
    assert [what for what, *_ in rows] == [what for what, *_ in record["printed"]["FOUND"]]
    ours, theirs = (
        {(*what, k): size for what, *sizes in said for k, size in enumerate(sizes)}
        for said in (rows, record["printed"]["FOUND"])
    )
    apart = {what: more for what, size in ours.items() if (more := size - theirs[what])}
    assert {what: more for what, more in apart.items() if more > 0} == {
        ("float32", "contiguous_format", 8, 64, 64, 56, 3, 1, 1, 0): 8 * 64 * 56 * 56 * 4
    }
    assert len(ours) == 80 and len(apart) == 28
