"""Exercises of lab 4: FSDP."""

from ...budget import budget
from ...catalog import model
from ...setup import Setup
from ..exercise import Exercise

_DDP = Setup(gpus=64, precision="bf16-mixed")
_ZERO3 = _DDP.replace(sharding="zero3")


def _peak(**changes):
    return budget(model("gpt2"), _DDP.replace(**changes)).peak


EXERCISES = [
    Exercise(
        id="04.1",
        title="GPT-2 under ZeRO-3 on 8 GPUs: what each holds between steps",
        difficulty=1,
        minutes=4,
        unit="MiB",
        decimals=0,
        answer=lambda: budget(model("gpt2"), _ZERO3.replace(gpus=8)).phases["rest"],
        mistakes={
            "gradients are gone between steps": lambda: 2 * int(model("gpt2").parameters),
            "that is one GPU's, undivided": lambda: 12 * int(model("gpt2").parameters),
            "weights between steps are fp32: what is gathered is bf16": lambda: 10 * int(model("gpt2").parameters) / 8,
        },
        hints=(
            "fp32 weights and AdamW's two states, all divided.",
            "12 bytes for each of 124,439,808 parameters, over 8; the padding does not show.",
        ),
    ),
    Exercise(
        id="04.2",
        title="What ZeRO-3 saves against ZeRO-2 at the peak of GPT-2 on 64 GPUs",
        difficulty=2,
        minutes=5,
        unit="MiB",
        decimals=1,
        answer=lambda: _peak(sharding="zero2") - _peak(sharding="zero3"),
        mistakes={
            "ZeRO-3 has the last block's flat buffer at its peak": lambda: (
                12 * budget(model("gpt2"), _ZERO3).parts["communication"]
            ),
            "that is against DDP": lambda: _peak() - _peak(sharding="zero3"),
        },
        hints=(
            "Twelve blocks whole in bf16, or none and one flat buffer: both peaks are in the loss's backward.",
            "11 blocks of 7,087,872 numbers, 2 bytes each.",
        ),
    ),
    Exercise(
        id="04.3",
        title="What is left over between a real CPU step of ZeRO-3 and the dry run, for 16 GPUs",
        difficulty=1,
        minutes=3,
        unit="B",
        answer=lambda: 4 * 16,
        mistakes={"that is for 8": 32, "each rank's number has 4 bytes": 16},
        hints=("The table has it for 8 GPUs, and the text says what it is.", "4 bytes for each rank of the mesh."),
    ),
]
