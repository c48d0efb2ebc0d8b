"""What autograd saves, in the memory of the CPU: against what an H200 was asked for."""

import ran

import everybyte as eb

#: The step of `tools/beside/scripts/methods.py`, and its Llama.
LLAMA = ran.llama(3)
SETUP = eb.Setup(batch=4, sequence=1024, precision="bf16", optimizer_impl="loop")
#: The H200's attention was cuDNN's, whose saved state is 8 bytes less in a block than flash attention's; on the host it does not count.
CUDNN = 8 * LLAMA.layers


def test_an_h200_was_asked_for_as_much_less():
    """Requested bytes at the peak of a step whose saved tensors stand in pinned memory, and of the same without."""
    rows = ran.scripts().values()
    there = {row["name"]: row["printed"]["FOUND"][2][0] for row in rows if row["group"] == "methods"}
    here, away = (eb.budget(LLAMA, SETUP.replace(offload=where)).peak for where in ("none", "activations"))
    assert there["foreach"] - there["pinned"] == here - away - CUDNN == 575_782_960
    assert there["pinned"] == there["offload"]  # pinned or not
