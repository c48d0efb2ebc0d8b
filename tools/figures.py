"""`make figures`: draws the pictures of the README and the book into figures/, each from the numbers of the code as it is.

Each PNG carries its alternative text as its description, which a test compares with what the code says today.
"""

import argparse
import os
from pathlib import Path

import everybyte as eb
from everybyte import draw
from everybyte.setup import MASTER_GRADIENTS

FOLDER = Path(__file__).resolve().parents[1] / "figures"
GPT2 = eb.model("gpt2")


def step():
    """The README's picture: one training step of GPT-2, operation by operation."""
    trace = eb.dry_run(GPT2, eb.Setup(batch=8, sequence=1024, precision="bf16-mixed"))
    return draw.timeline(trace, "One training step of GPT-2 124M: batch 8, sequence 1024, bf16 autocast, AdamW")


def states():
    """What every parameter costs, for each precision and each place of the gradients, in bytes."""
    rows = {}
    for precision in ("fp32", "bf16-mixed", "bf16-master", "bf16"):
        for kept in MASTER_GRADIENTS if precision == "bf16-master" else ("bf16",):
            setup = eb.Setup(precision=precision, master_gradients=kept)
            label = precision if kept == "bf16" else f"{precision}, {kept} gradients"
            names = {
                "parameters": "weights",
                "gradients": "gradients",
                "master": "optimizer.master",
                "optimizer": "optimizer.states",
            }
            rows[label] = {part: eb.formula(name).at(GPT2, setup) for part, name in names.items()}
    return draw.stacked(rows, title="GPT-2 124M with AdamW after backward, before any activation", unit="GiB")


FIGURES = {"step": step, "states": states}


def main():
    """Draw all figures, or those named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(FIGURES)}; by default all")
    names = parser.parse_args().names or list(FIGURES)
    if unknown := set(names) - set(FIGURES):
        parser.error(f"names: {', '.join(sorted(unknown))} is unknown; allowed: {', '.join(FIGURES)}")
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        fig = FIGURES[name]()
        beside = FOLDER / f".{name}.png"
        beside.write_bytes(draw.png(fig, description=draw.checked_alt(fig.alt)))
        os.replace(beside, FOLDER / f"{name}.png")
        print(f"figures/{name}.png: {fig.alt}")


if __name__ == "__main__":
    main()
