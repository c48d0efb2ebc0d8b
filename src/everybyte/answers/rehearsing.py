"""Rehearse a diagnosis: the run as it died, and each advice that needs no change of the script, on a GPU that does nothing."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from .. import units
from ..ask.setup import Setup
from ..catalog import Gpu, Model
from ..catalog.outside import context
from ..rehearsal import ScriptRehearsal, rehearse, rehearse_script
from .advice import Diagnosis
from .headroom import EXPANDABLE, find_gpu

#: Advice -> the `PYTORCH_ALLOC_CONF` that it is.
SETTINGS = {
    **dict.fromkeys(("expandable", "pieces", "less reserved"), EXPANDABLE), "split": "max_split_size_mb:128",
}  # fmt: skip
#: Advice that leaves the GPU to this process.
_ALONE = ("others",)


def rehearsed(
    found: Diagnosis, gpu: Gpu | str | None, command: Sequence[str] = (), model: Model | None = None, setup: Setup | None = None,
    *, memory: int | None = None, gpus: int = 1, steps: int = 5, say: Callable[[str], object] = lambda line: None,
) -> Diagnosis:  # fmt: skip
    """A diagnosis with what rehearsals say of its advice: whether the run then goes through, and what it reserves.

    Args:
        found: by `eb.doctor`. gpu: which; by default an H200, with the memory that the message says. command: the script's, unmodified:
            settings of the allocator are rehearsed, and a GPU without other processes. model, setup: the run, in place of a script: then
            the switches are rehearsed. memory: bytes that this process may have of the GPU, its context among them; by default what the
            message leaves it. gpus: how many the script uses. steps: optimizer steps after which a script that runs is ended. say: is told
            of each rehearsal.

    Raises:
        ValueError: for neither a command nor a model, or both; and as `eb.rehearse`.
    """
    if bool(command) == (model is not None):
        raise ValueError(
            "doctor.rehearse: a script and a model, or neither; allowed: -- python train.py ..., or a model and its setup"
        )
    card = find_gpu(gpu or "h200")
    whole = found.message.capacity if found.message and found.message.capacity else None
    limit = memory or _left(found, card)

    if model is not None and setup is not None:
        run = _steps(model, setup, card, limit)
    else:
        run = _scripts(command, card, limit, whole or card.memory, gpus, steps)
    say("rehearsed as it died")
    (_, first), advice = _or_why(run, None), []
    for one in found.advice:
        if one.setup is not None or one.name in SETTINGS or one.name in _ALONE:
            say(f"rehearsed: {one.what}")
        runs, said = _or_why(run, one)
        advice.append(replace(one, rehearsed=said, fits=one.fits if runs is None else runs))
    advice.sort(key=lambda one: (one.fits is False, not (one.fits and one.rehearsed)))
    return replace(found, findings=[*found.findings, f"rehearsed as it was: {first}"], advice=advice)


def _scripts(command, card, limit, whole, gpus, steps):
    """A function that rehearses the script with one advice, or as it is."""

    def script(limit, settings=""):
        words = ["env", f"PYTORCH_ALLOC_CONF={settings}", *command] if settings else list(command)
        return _words(rehearse_script(words, card, gpus=gpus, steps=steps, memory=limit, quiet=True))

    def run(one):
        if one is None or one.name in SETTINGS:
            return script(limit, SETTINGS[one.name] if one else "")
        return script(whole) if one.name in _ALONE else None

    return run


def _steps(model: Model, setup: Setup, card, limit):
    """The same of a model's step."""

    def run(one):
        if one is None or one.setup is not None:
            return _step(rehearse(model, one.setup if one else setup, card, memory=limit))
        grows = one.name in ("expandable", "pieces")
        return _step(rehearse(model, setup, card, memory=limit, expandable=True)) if grows else None

    return run


def _left(found, card):
    """Bytes of the GPU that a message leaves to this process: without others, and without what it has outside above a context."""
    said = found.message
    if said is None or said.capacity is None:
        return None
    most = context(card).most
    others = sum(size for _, size in said.others if said.process is not None)
    outside = (
        max(0, said.process - said.reserved - most) if said.process is not None and said.reserved is not None else 0
    )
    return max(most, said.capacity - others - outside)


def _or_why(run, one):
    """(whether it ran, in words); (None, why it was not rehearsed), or nothing where it cannot be."""
    try:
        return run(one) or (None, "")
    except ValueError as error:
        return None, f"not rehearsed: {error}"


def _words(found: ScriptRehearsal):
    if found.oom:
        dead = next(process["oom"] for process in found.processes if process["oom"])
        where = f" at {dead['line']}" if dead.get("line") else ""
        return False, f"dies{where}: asked for {units.text(dead['requested'])}, {units.text(dead['free'])} free"
    if found.status:
        return None, f"ended with status {found.status} and another error"
    if found.caught:
        return False, found.caught
    return True, f"runs: {units.text(max(found.reserved))} reserved, peak {units.text(found.peak)}"


def _step(found):
    if found.oom:
        return (
            False,
            f"dies in {found.out_of_memory['at']}: asked for {units.text(found.out_of_memory['requested'] or 0)}",
        )
    return True, f"runs: {units.text(found.reserved)} reserved, peak {units.text(found.peak)}"
