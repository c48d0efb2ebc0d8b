"""Exercises of chapter 36: what changes with a million tokens?"""

from ...formulas.symbols import A, A_kv, B, C, D, S
from . import Case, Mesh, Setup, answers, equal, model, program, run

LLAMA = run("llama-3.1-8b", batch=1, sequence=2**20, precision="bf16")


def ring(name="forward", parts=256, rotation="all-gather"):
    """A `context.` formula of a million tokens."""
    return int(LLAMA.at(f"context.{name}", gpus=parts, mesh=Mesh(context=parts, rotation=rotation)))


def kept(copies=1):
    return (2 * B * S * D * ((2 + copies) * A + 2 * A_kv) + 4 * B * S * A) / C


def keys(heads=1, both=2, tokens=2**20):
    """Keys and values of some heads on one GPU."""
    return both * heads * tokens * 128 * 2


def inputs(layers=32, tokens=2**17, width=4096, size=2):
    """Inputs of checkpointed blocks on one GPU."""
    return layers * tokens * width * size


def swapping():
    """Models, and the numbers of GPUs that the library lets swap their heads for tokens."""
    llama = model("llama-3.1-8b", code="reference")
    for heads, kv_heads, most in ((32, 8, 64), (28, 4, 32), (12, 4, 12), (64, 8, 16), (8, 1, 8), (6, 6, 3)):
        right = []
        for n in range(2, most + 1):
            setup = Setup(sequence=n, gpus=n, mesh=Mesh(context=n, rotation="ulysses"))
            try:
                setup.check_model(llama.replace(heads=heads, kv_heads=kv_heads, head_width=128))
            except ValueError:
                continue
            right.append(n)
        yield Case(f"{heads} heads, {kv_heads} key heads, up to {most} GPUs", (heads, kv_heads, most), right)


def degrees(heads, kv_heads, most, *, copied=True, keys=True, first=2):
    return [
        n
        for n in range(first, most + 1)
        if heads % n == 0 and (not keys or kv_heads % n == 0 or (copied and n % kv_heads == 0))
    ]


ANSWERS = {
    "36.1": answers(
        kept(),
        copy=kept(0),
        all=kept() * C,
        logarithms=2 * B * S * D * (3 * A + 2 * A_kv) / C,
        heads=(10 * B * S * D * A + 4 * B * S * A) / C,
    ),
    "36.2": answers(ring, rotation="all-to-all", name="kept", parts=64, quarter=ring(parts=64) // 4),
    "36.3": answers(keys, both=1, even=keys() // 4, all=keys(8)),
    "36.4": answers(inputs, all=8 * inputs(), layers=1, size=4),
    "36.5": program(degrees, swapping, equal, copied=False, keys=False, first=1),
}
