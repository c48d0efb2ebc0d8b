"""How long a GPU takes for what a step asks of it: shares of its data sheet's rates, as one H200 reached them.

The shares are of `labs/records/scripts/h200.jsonl`, its case `rates`, one kernel at a time; where a comment says so, of a whole step of
`labs/records/h200.jsonl`. Other GPUs are taken to reach the same shares. `throughput` holds whole steps to what comes of it.
"""

from dataclasses import dataclass, fields

from ..catalog import Gpu

#: Matrix products in 16 bits: five large ones, 0.65 to 0.81. Logits whose rows are no multiple of 16 bytes: three products that no
#: fast kernel takes, of GPT-2's steps with 8, 16 and 32 x 1,024 tokens: 0.10 to 0.12, its vocabulary being 50,257. Products in fp32: two, 0.70 and 0.75.
PRODUCTS, RAGGED, FP32 = 0.75, 0.11, 0.72
#: Numbers of 16 bits in 16 bytes.
ALIGNED = 8
#: Flash attention forward and backward: the share that long sequences reach, and the tokens at which half of it is reached, for a tile on
#: the diagonal is computed whole. Heads of 64 and 128, 1,024 to 16,384 tokens, within 11 %. cuDNN's kernels take 0.5 to 0.7 of the time.
ATTENTION, ATTENTION_BACKWARD = (0.34, 500), (0.31, 1200)
#: The memory-efficient kernel in fp32, of GPT-2's step in fp32.
ATTENTION_FP32 = 0.4
#: Bytes through the GPU's memory: AdamW fused and foreach, 0.72 and 0.77; a copy 0.88, cross entropy 0.65. And where attention
#: forms its scores, whose softmax reads rows more than once: of the step of GPT-2 with 8 x 1,024 tokens.
MEMORY, SCORES = 0.75, 0.5
#: Seconds in which Python starts one operation of forward or backward, and the optimizer's step: of training runs so small that the GPU
#: waits, in bf16 and under autocast. Which CPU it was is not recorded.
STARTS, STEPS = 25e-6, 2.5e-3
#: How many times as long where PyTorch asks a function in Python at each operation what to keep: of one step, GPT-2 with 8 x 1,024 tokens.
ASKED = 4
#: How much longer a GPU takes for its own work where several train together: NCCL's kernels run beside the step's, all wait for
#: the slowest, and clocks fall in hours of full power. The median of 38 published runs, `throughput`.
TOGETHER = 1.2


@dataclass(frozen=True)
class Load:
    """What a GPU does, one after another, in a phase or in a step.

    Attributes:
        plain: FLOPs of matrix products; ragged: of those whose rows are no multiple of 16 bytes; attention, attention_backward: of kernels
            that skip what a causal mask hides.
        moved: bytes to and from the GPU's memory; scores: those of them where attention's scores are formed.
        started: operations of forward and backward that Python starts. steps: of the optimizer.
        sequence: tokens of one.
    """

    plain: float = 0
    ragged: float = 0
    attention: float = 0
    attention_backward: float = 0
    moved: float = 0
    scores: float = 0
    started: float = 0
    steps: float = 0
    sequence: int = 0

    @property
    def flops(self) -> float:
        """Of all matrix products."""
        return self.plain + self.ragged + self.attention + self.attention_backward

    def __add__(self, other: "Load") -> "Load":
        both = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)[:-1]}
        return Load(**both, sequence=max(self.sequence, other.sequence))

    def __mul__(self, times: float) -> "Load":
        return Load(**{f.name: times * getattr(self, f.name) for f in fields(self)[:-1]}, sequence=self.sequence)

    def seconds(self, gpu: Gpu, compute: str, gpus: int = 1) -> dict[str, float]:
        """`arithmetic`, `attention`, `memory` -> seconds one after another; and `launch`: how much longer Python takes to start it all.

        Args:
            compute: the data type of products. gpus: how many train together.
        """
        rate, narrow = gpu.flops(compute), compute != "fp32"
        products = [self.plain / PRODUCTS, self.ragged / RAGGED] if narrow else [self.plain / FP32, self.ragged / FP32]
        attention = [(self.attention, ATTENTION), (self.attention_backward, ATTENTION_BACKWARD)]
        slower = TOGETHER if gpus > 1 else 1.0
        found = {
            "arithmetic": sum(products) / rate,
            "attention": sum(
                done / share * (1 + tokens / self.sequence) if narrow else done / ATTENTION_FP32
                for done, (share, tokens) in attention
                if done
            )
            / rate,
            "memory": ((self.moved - self.scores) / MEMORY + self.scores / SCORES) / gpu.bandwidth,
        }
        found = {name: slower * value for name, value in found.items()}
        return found | {"launch": max(0.0, STARTS * self.started + STEPS * self.steps - sum(found.values()))}
