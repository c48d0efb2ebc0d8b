"""A formula for any model, from its own dry runs.

A step's course (which operations run, which tensors are born and freed, in which order) is the same at all batches and
sequences of a range; only the tensors' bytes differ, and each is a polynomial in them, or one of what pads. So a few dry
runs give it exactly, in fractions, and further ones check it.
"""

from dataclasses import replace
from typing import Literal, overload

from ..ask.setup import Setup
from ..common import checks
from ..derivation import Derivation
from ..derivation.lettered import Lettered
from ..dryrun.modules import own
from ..rules import DERIVED, check
from . import cache
from .looks import subject
from .solving import solve

__all__ = ["Derivation", "Lettered", "derive"]


#: The letters that a formula can have: batch and sequence, or the model's own dimensions too.
LETTERS = ("BS", "all")


@overload
def derive(
    model, setup: Setup, batch=None, keep: bool = True, letters: Literal["BS"] = "BS", rank: int = 0
) -> Derivation: ...
@overload
def derive(model, setup: Setup, batch=None, keep: bool = True, *, letters: Literal["all"]) -> Lettered: ...
def derive(
    model, setup: Setup, batch=None, keep: bool = True, letters: str = "BS", rank: int = 0
) -> Derivation | Lettered:
    """The memory of one steady training step as a formula in batch B, sequence S and letters of your own: the dry run's, at every point.

    Args:
        model: a `Model`, a Hugging Face config, or a function that makes a `torch.nn.Module`, as `dry_run` takes them.
        setup: as for the dry run; `batch` and `sequence` become letters.
        batch: for a module of your own, the arguments of its forward as `dry_run` takes them, with the letters "B" and "S"
            in their shapes, such as {"tokens": (("B", "S"), torch.int64)}, and other capital letters for dimensions of your
            own, such as {"pixel_values": (("B", 3, "R", "R"), torch.float32)}; or a function of batch and sequence that
            makes them, or of letters by which its arguments are called, such as `lambda B, M: ...`.
        keep: whether to look for the derivation of a catalog model or a config on disk, and to keep it there.
        letters: "all" for a formula in the model's own dimensions too, by PyTorch's symbolic shapes: of a GPT or a Llama of
            the catalog on one GPU. It is a `Lettered`, and is not kept.
        rank: of several GPUs the one whose step it is, as for `dry_run`.

    Raises:
        ValueError: what `dry_run` raises; and where no formula holds: a course of operations that depends on batch, sequence
            or another letter otherwise than by ranges and multiples, or bytes that are no polynomial in them and in what they
            are divided into; naming operation and module.
    """
    checks.kind("derive", "setup", setup, Setup)
    setup = setup.of(own(model))
    setup.check_undivided("derive")
    checks.one_of("derive", "letters", letters, LETTERS)
    check(DERIVED, setup)
    checks.whole("derive", "rank", rank, 0, setup.gpus - 1)
    if letters == "all":
        from .letters import in_letters

        if batch is not None:
            raise ValueError(f"derive.batch: a {type(batch).__name__} with letters 'all'; allowed: None")
        return in_letters(model, setup)
    found = subject(model, batch)
    kept = cache.place(model, setup, batch, rank) if keep else None

    def again(setup, **sizes):
        return found.trace(setup, None, {"B": setup.batch, "S": setup.sequence, **sizes}, rank)

    if kept and (derivation := cache.read(kept)):
        return replace(derivation, setup=setup, again=again)
    derivation = solve(found, setup, rank)
    if kept:
        cache.write(kept, derivation)
    return replace(derivation, again=again)
