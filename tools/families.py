"""Formula and dry run over families, precisions, attentions, checkpointing and GPUs: a cell each, 0 bytes apart or refused by name.

The formula gets the dimensions, the dry run transformers' own configuration of them. Windows are reached, and layers of two kinds come
several times. `python tools/families.py` runs all cells, `make bench` too.
"""

from itertools import product
from typing import NamedTuple

import everybyte as eb
from everybyte.common.tables import Table

_SIZES = {"layers": 14, "width": 96, "heads": 6, "vocabulary": 300, "ffn_width": 80}
_GROUPED = _SIZES | {"kv_heads": 2, "head_width": 16}
_NEAR = _GROUPED | {"window": 16}
_VISITED = _GROUPED | {"experts": 8, "experts_per_token": 2, "expert_width": 40}
#: Family -> a small model of it.
FAMILIES = {
    "Llama": eb.model("llama-3.1-8b").replace(**_GROUPED),
    "Mistral": eb.model("mistral-7b").replace(**_NEAR),
    "Qwen 2.5": eb.model("qwen2.5-7b").replace(**_NEAR, full_every=4),
    "Qwen 3": eb.model("qwen3-8b").replace(**_NEAR),
    "Gemma": eb.model("gemma-2b").replace(**_GROUPED),
    "Gemma 2": eb.model("gemma-2-2b").replace(**_NEAR),
    "Gemma 3": eb.model("gemma-3-1b").replace(**_NEAR, full_every=3),
    "Phi-3": eb.model("phi-3-mini").replace(**_NEAR),
    "Mixtral": eb.model("mixtral-8x7b").replace(**_VISITED),
    "gpt-oss": eb.model("gpt-oss-20b").replace(**_VISITED, window=16),
    "OPT": eb.model("opt-125m").replace(**_SIZES),
    "GPT-NeoX": eb.model("pythia-160m").replace(**_SIZES),
    "GPT-2": eb.model("gpt2", code="transformers").replace(**_SIZES),
    "GPT-2, the book's": eb.model("gpt2").replace(**_SIZES),
}
PRECISIONS = ("bf16", "bf16-mixed", "fp32")
ATTENTIONS = ("eager", "flash")  # what transformers calls sdpa
CHECKPOINTINGS = ("none", "full")
GPUS = (1, 8)
CELLS = tuple(product(FAMILIES, PRECISIONS, ATTENTIONS, CHECKPOINTINGS, GPUS))


class Cell(NamedTuple):
    """What the two witnesses say of a step. apart: bytes between their peaks, or between their parts or phases where the peaks agree; None
    where one refuses. refused: who refuses -> what it says."""

    apart: int | None
    refused: dict[str, str]


def cell(family, precision, attention, checkpointing, gpus) -> Cell:
    """Both witnesses on one of `CELLS`."""
    model = FAMILIES[family]
    setup = eb.Setup(
        batch=2, sequence=40, precision=precision, attention=attention, checkpointing=checkpointing, gpus=gpus,
        sharding="zero3" if gpus > 1 else "none",
    )  # fmt: skip
    said, refused = {}, {}
    for name, ask, asked in (("formula", eb.budget, model), ("dry run", eb.dry_run, configured(model))):
        try:
            said[name] = ask(asked, setup)
        except ValueError as error:
            refused[name] = str(error)
    if refused:
        return Cell(None, refused)
    one, other = said.values()
    pairs = [(one.peak, other.peak)]
    pairs += [(getattr(one, of)[key], n) for of in ("parts", "phases") for key, n in getattr(other, of).items()]
    return Cell(max((abs(a - b) for a, b in pairs)) + (one.peak_at != other.peak_at), {})


def configured(model):
    """transformers' configuration of a model, with no dropout; of the book's own code the model itself."""
    if model.family:
        return model
    from everybyte.dryrun.hugging_face import config_of

    config = config_of(model)
    for name, value in vars(config).items():
        if isinstance(value, float) and ("dropout" in name or name.endswith("_pdrop")):
            setattr(config, name, 0.0)
    return config


def main() -> bool:
    """Print the table, and what was refused. Returns whether a cell is off by a byte, or refused by one of the two alone."""
    columns = list(product(PRECISIONS, ATTENTIONS, CHECKPOINTINGS, GPUS))
    found = {one: cell(*one) for one in CELLS}
    heads = [" ".join((p.removeprefix("bf16-"), a, c, "FSDP 8" if g > 1 else "1 GPU")) for p, a, c, g in columns]
    rows = [
        [head, *(_shown(found[family, *column]) for family in FAMILIES)]
        for head, column in zip(heads, columns, strict=True)
    ]
    print(Table(["bytes apart", *FAMILIES], rows))
    refused = [one for one in found.values() if one.refused]
    alone = [one for one in refused if len(one.refused) == 1]
    wrong = [one for one, said in found.items() if said.apart]
    print(
        f"{len(found)} cells: {len(found) - len(refused) - len(wrong)} exact, {len(wrong)} off, {len(refused)} refused by name, "
        f"of these by one of the two alone {len(alone)}"
    )
    print(*sorted({why for one in refused for why in one.refused.values()}), sep="\n")
    return bool(wrong or alone)


def _shown(one):
    return "refused" if one.refused else f"{one.apart:,}"


if __name__ == "__main__":
    raise SystemExit(main())
