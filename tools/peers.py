"""Other estimators on the same runs: the tables of the README.

    python tools/peers.py

First sixteen runs, GPT-2 from 124M to XL, 8 × 1,024 tokens, AdamW, in fp32 and under bf16 autocast, with eager and flash attention,
against what PyTorch's CUDA allocator allocates in the rehearsals that ship with the book. Then what others measured on GPUs: each
training step of torchtitan's, Megatron-LM's and torchtune's makers in `published/corpus` that is not compiled and has no pipeline
(Megatron's last stage records, and estimators speak of the first), against the number that they printed. `accelerate` is the
installed package; the others' formulas are written out here, as they stand in their sources. Estimates are kept in `peers.jsonl`.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from everybyte import units
from everybyte.ask.setup import Setup
from everybyte.catalog import Model, model
from everybyte.published.harvest import corpus
from everybyte.published.predicting import ninth, published
from everybyte.rehearsal import shipped
from everybyte.theory.budget import budget

SIZES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
#: What PyTorch asks for beside tensors on the rehearsed GPU: cuBLAS's two workspaces.
WORKSPACES = 2 * 2**25
STORE = Path(__file__).with_name("peers.jsonl")
REHEARSED, SIMUMAX = "**rehearsed here**", "SimuMax 1.2"
NAMES = {
    "8b": "llama-3.1-8b",
    "70b": "llama-3.1-70b",
    "llama2-7b": "llama-2-7b",
    "qwen3-32b": "qwen3-32b",
    "3b": "llama-3.2-3b",
}


@dataclass(frozen=True)
class Asked:
    """A training step, as an estimator is asked for it.

    Attributes:
        states: `fp32`, `mixed` (fp32 weights under autocast), `bf16` (everything), or `megatron` (16-bit weights, fp32 gradients and master).
        zero: DeepSpeed's stage, 0 to 3. data: GPUs that share so. tensor: GPUs that share a matrix.
        recompute: `none`, `full`, or `some` of each block.
    """

    model: Model
    batch: int
    sequence: int
    states: str = "mixed"
    zero: int = 0
    data: int = 1
    tensor: int = 1
    recompute: str = "none"
    flash: bool = True

    @property
    def alone(self) -> bool:
        """Whether it is on one GPU."""
        return self.data == self.tensor == 1

    @property
    def rows(self) -> int:
        """Tokens: `sb` of the estimators."""
        return self.batch * self.sequence

    @property
    def stream(self) -> int:
        """Numbers of the residual stream: `sbh` of the estimators."""
        return self.rows * self.model.width

    @property
    def scores(self) -> int:
        """Numbers of all heads' scores in a block: `as²b` of the estimators."""
        return self.rows * self.sequence * self.model.heads

    def shared(self, *sizes: float) -> float:
        """Bytes of all parameters on a GPU: of weights, gradients, states, as ZeRO-3, 2 and 1 share them."""
        shares = (self.data if self.zero >= stage else 1 for stage in (3, 2, 1))
        return self.model.parameters / self.tensor * sum(size / n for size, n in zip(sizes, shares, strict=True))


def sixteen(asked: Asked) -> float:
    """The rule of thumb: 16 bytes a parameter, over the GPUs that share them."""
    return asked.shared(2, 2, 12)


def accelerate(asked: Asked) -> float | None:
    """Hugging Face's `accelerate estimate-memory`, for training with Adam; it knows one GPU, and neither batch nor attention."""
    from accelerate.commands.estimate import estimate_training_usage

    kind = "float32" if asked.states == "fp32" else "bfloat16"
    return max(estimate_training_usage(4 * asked.model.parameters, kind).values()) if asked.alone else None


def cookbook(asked: Asked) -> float | None:
    """EleutherAI/cookbook, 069ae2e, calc/calc_transformer_mem.py, its defaults and `--partition-activations`.

    It has no flash attention, but where that is recomputed.
    """
    if asked.flash and asked.recompute == "none":
        return None
    m, gpus = asked.model, asked.data * asked.tensor
    H, L = m.width, m.layers
    numbers = 2 * m.vocabulary * H + H * asked.sequence + 8 * H * L + 2 * H
    numbers += 2 * (1 + m.kv_heads / m.heads) * L * H * H + (3 if m.gated else 2) * L * H * m.ffn_width
    low = 4 if asked.states == "fp32" else 2
    states = low * numbers / asked.tensor / (gpus if asked.zero == 3 else 1)
    states += 4 * numbers / (gpus if asked.zero >= 2 else 1) + 12 * numbers / (gpus if asked.zero else 1)
    buffers = low * (5e8 * (asked.zero > 0) + 1e9 * (asked.zero == 3)) if gpus > 1 else 0
    kept = L * (34 * asked.stream + (5 * asked.scores if asked.recompute == "none" else 0))
    return states + buffers + kept / asked.tensor


def deepspeed(asked: Asked) -> float | None:
    """DeepSpeed, edaa722, its estimators of ZeRO-2 and ZeRO-3 in runtime/zero: states alone, and the largest layer."""
    if asked.zero < 2 or asked.tensor > 1:
        return None
    whole = 4 * asked.model.vocabulary * asked.model.width if asked.zero == 3 else 2 * asked.model.parameters
    return whole + 18 * asked.model.parameters / asked.data


def megatron(asked: Asked) -> float | None:
    """NVIDIA/Megatron-LM, d98e8a6, megatron/training/theoretical_memory_usage.py, as it is without sequence parallelism."""
    if asked.states != "megatron" or asked.recompute != "none":
        return None
    m, t, H = asked.model, asked.tensor, asked.model.width
    block = 2 * H * H * (1 + m.kv_heads / m.heads) + 2 * H * m.ffn_width * (1.5 if m.gated else 1)
    numbers = (block * m.layers + H * m.vocabulary * (1 if m.tied else 2)) / t + 4 * H * m.layers + 2 * H
    kept = asked.stream * (10 + 24 / t) * m.layers + 8 * asked.rows + asked.stream
    kept += 2 * (asked.rows * m.vocabulary / t + asked.stream)
    return numbers * (6 + 12 / asked.data if asked.zero else 18) + 1.05 * kept


def ultrascale(asked: Asked) -> float | None:
    """The Ultra-Scale Playbook's widget, src/memory.js, read in 2026. It has no fp32, and no flash attention, but where it is recomputed."""
    if asked.states == "fp32" or (asked.flash and asked.recompute == "none"):
        return None
    m = asked.model
    block = 11 * asked.stream + (5 * asked.scores if asked.recompute == "none" else 0)
    block += 3 * asked.stream + 2 * asked.rows * m.ffn_width * (4 if m.gated else 2) + 4 * asked.stream
    once = 5 * asked.stream + 4 * asked.rows * m.vocabulary
    kept = (2 * asked.stream if asked.recompute == "full" else block) * m.layers + once
    return asked.shared(2, 2, 12) + kept / asked.tensor


def llm_analysis(asked: Asked) -> float | None:
    """cli99/llm-analysis, d841e40, llm_analysis/analysis.py. It has no fp32; some recomputation is its own kinds, not these."""
    if asked.states == "fp32" or asked.recompute == "some":
        return None
    m, t, stream = asked.model, asked.tensor, asked.stream
    core = 2 * (2 * stream + 4 * m.heads * asked.rows) if asked.flash else 4 * asked.scores
    block = (2 + 8 / t + 1) * stream + core / t + 2 * stream + 4 * asked.rows * m.ffn_width / t + 8 * stream
    logits = 2 * asked.rows * m.vocabulary / t
    kept = (2 * stream / t if asked.recompute == "full" else block) * m.layers + 2 * stream / t + logits
    ahead = 4 * m.parameters / t / m.layers if asked.zero == 3 else 0
    return asked.shared(2, 0, 12) + max(kept, asked.shared(0, 4, 0)) + max(ahead, logits)


def gpu_poor(asked: Asked) -> float | None:
    """RahulSChand/gpu_poor, 05d18ab, src/App.js: one GPU, 16 bits, a gated MLP, and a sixth of what is kept where blocks are recomputed."""
    if not asked.alone or asked.states != "bf16":
        return None
    m, sb = asked.model, asked.rows
    numbers = 2 * m.vocabulary * m.width + m.layers * m.width * (4 * m.width + 3 * m.ffn_width)
    block = 16 * asked.stream + 8 * asked.scores + 4 * asked.stream + 12 * sb * m.ffn_width + 8 * sb + 12 * asked.stream
    return 8 * numbers + block * m.layers * (0.15 if asked.recompute != "none" else 1) + 650 * 2**20


def fm_estimator(asked: Asked) -> float | None:
    """foundation-model-stack/fm-training-estimator, 1d04f05, memory/full/full.py: one GPU, one type for everything."""
    if not asked.alone or asked.states not in ("bf16", "fp32"):
        return None
    m, size = asked.model, 4 if asked.states == "fp32" else 2
    numbers = m.layers * (12 * m.width**2 + 13 * m.width) + m.vocabulary * m.width + 4 * m.width
    kept = m.layers * (34 * asked.stream + 5 * asked.scores) * size / 2
    return numbers * 2 * size + 8 * numbers + kept / (m.layers if asked.recompute == "full" else 1)


ESTIMATORS: dict[str, Callable[[Asked], float | None]] = {
    "16 bytes a parameter": sixteen,
    "`accelerate estimate-memory`": accelerate,
    "EleutherAI cookbook (069ae2e)": cookbook,
    "DeepSpeed's ZeRO estimators": deepspeed,
    "Megatron-LM's own": megatron,
    "Ultra-Scale Playbook's widget": ultrascale,
    "llm-analysis (d841e40)": llm_analysis,
    "gpu_poor (05d18ab)": gpu_poor,
    "fm-training-estimator (1d04f05)": fm_estimator,
}


def runs() -> list[tuple[Model, Setup]]:
    """Models and setups of the first table."""
    return [
        (model(name), Setup(batch=8, sequence=1024, precision=precision, attention=attention))
        for name in SIZES
        for precision in ("fp32", "bf16-mixed")
        for attention in ("eager", "flash")
    ]


def errors() -> dict[str, list[float]]:
    """Estimator -> by how much of what was allocated each rehearsed run's estimate is off.

    Raises:
        ValueError: where a run has no rehearsal of today's sources.
    """
    shelf = shipped("h200")
    if shelf is None or shelf.stale:
        raise ValueError("peers: no rehearsals of today's reference step; `everybyte rehearse --all` makes them")
    found: dict[str, list[float]] = {
        name: [] for name in ("16 bytes a parameter", "`accelerate estimate-memory`", "EleutherAI cookbook (069ae2e)")
    }
    found["this book's formula"] = []
    for shape, setup in runs():
        if (shape, setup) not in shelf.found:
            raise ValueError(f"peers: {shape.name} with {setup} has no rehearsal")
        states = "fp32" if setup.precision == "fp32" else "mixed"
        asked = Asked(shape, setup.batch, setup.sequence, states, flash=setup.attention == "flash")
        allocated = shelf.found[shape, setup].allocated
        for name in found:
            said = ESTIMATORS[name](asked) if name in ESTIMATORS else budget(shape, setup).peak + WORKSPACES
            if said is not None:
                found[name].append(abs(said / allocated - 1))
    return found


def table() -> str:
    """Markdown: the sixteen rehearsed runs."""
    rows = ["| estimator | runs it can say | median error | worst |", "|---|--:|--:|--:|"]
    rows += [
        f"| {name} | {len(off)} of {len(runs())} | {median(off):.1%} | {max(off):.1%} |"
        for name, off in errors().items()
    ]
    return "\n".join(rows)


def asked() -> Iterator[tuple[str, Asked]]:
    """(A record's id, its run), of all that an estimator could be asked for."""
    for id, record in corpus().items():
        if record.quantity not in ("allocated", "active", "reserved") or record.less or record.fidelity == "apart":
            continue
        said = _options(record.run.options)
        plain = not said.keys() & {"compile", "compile-loss", "chunks", "backward", "offload", "rank", "stages"}
        if record.run.script in READERS and plain and said.get("steps", "2") not in ("0", "1"):
            if (found := READERS[record.run.script](said, record.run)) is not None:
                yield id, found


def _options(text):
    """--name VALUE and --name -> {name: value or ""}."""
    words = text.split()
    ends = [*words[1:], "--"][: len(words)]
    return {
        word[2:]: "" if after.startswith("--") else after
        for word, after in zip(words, ends, strict=True)
        if word.startswith("--")
    }


def _titan(said, run):
    recompute = {"op": "some", "full": "full", "none": "none"}.get(said.get("recompute", "op"))
    tensor, shape = int(said.get("tensor", 1)), model(NAMES[said.get("model", "8b")]).replace(tied=False)
    if recompute is None:
        return None
    sizes = (int(said.get("batch", 1)), int(said.get("sequence", 8192)))
    return Asked(shape, *sizes, "mixed", 3, run.gpus // tensor, tensor, recompute)


def _megatron(said, run):
    given = {name: int(said.get(name, default)) for name, default in (
        ("layers", 12), ("width", 512), ("heads", 8), ("keys", 0), ("ffn", 0), ("vocabulary", 50257), ("positions", 1024), ("batch", 4),
        ("tensor", 1), ("data", 8),
    )}  # fmt: skip
    padded = -(-given["vocabulary"] // (128 * given["tensor"])) * 128 * given["tensor"]
    shape = Model(
        name="megatron", layers=given["layers"], width=given["width"], heads=given["heads"], kv_heads=given["keys"] or given["heads"],
        vocabulary=padded, positions=given["positions"], tied="untied" not in said,
    )  # fmt: skip
    recompute = "full" if "recompute" in said else "none"
    zero, flash = int("distributed" in said), said.get("attention", "flash") == "flash"
    return Asked(
        shape, given["batch"], given["positions"], "megatron", zero, given["data"], given["tensor"], recompute, flash
    )


def _tune(said, run):
    shape = model(NAMES[said.get("model", "3b")])
    return Asked(
        shape, 2, int(said.get("sequence", 4096)), "bf16", recompute="full" if "checkpoint" in said else "none"
    )


def _engine(said, run):
    if said.keys() & {"context", "experts"}:  # of which no estimator here has an option
        return None
    given = {name: int(said.get(name, default)) for name, default in (
        ("layers", 12), ("width", 8192), ("heads", 64), ("keys", 8), ("ffn", 28672), ("tensor", 2), ("data", 4),
    )}  # fmt: skip
    shape = Model(
        name="megatron", layers=given["layers"], width=given["width"], heads=given["heads"], kv_heads=given["keys"], ffn_width=given["ffn"],
        vocabulary=128_256, positions=0, learned_positions=0, gated=True, fused=False, tied=False, qkv_bias=False, out_bias=False,
        ffn_bias=False, norm="rmsnorm",
    )  # fmt: skip
    return Asked(shape, 1, 4096, "megatron", 1, given["data"], given["tensor"])


READERS = {"titan.py": _titan, "megatron.py": _megatron, "tune.py": _tune, "engine.py": _engine}


def estimates() -> list[dict]:
    """Of each record what each estimator says, in bytes; None where it cannot."""
    return [
        {
            "record": id,
            "estimates": {name: said and round(said) for name, f in ESTIMATORS.items() for said in (f(one),)},
        }
        for id, one in asked()
    ]


def simulated() -> str:
    """Markdown: what SimuMax's makers measured, as each estimator says it, theirs by what they publish."""
    ours, said = published(run=False), {one["record"]: one for one in estimates()}
    records = {id: record for id, record in corpus().items() if SIMUMAX in record.estimated}
    rows = ["| estimator | runs it can say | median | worst |", "|---|--:|--:|--:|"]
    for name in (*ESTIMATORS, SIMUMAX, REHEARSED):
        off = []
        for id, record in records.items():
            if name == SIMUMAX:
                off.append(abs(units.parse(record.estimated[SIMUMAX]) / record.bytes - 1))
            elif id in said or name == REHEARSED:
                off.append(_off(name, said.get(id, {"record": id}), ours))
        known = [size for size in off if size is not None]
        if known:
            rows.append(f"| {name} | {len(known)} of {len(records)} | {median(known):.2%} | {max(known):.2%} |")
    return "\n".join(rows)


def measured() -> str:
    """Markdown: what others measured on GPUs, by whom, each estimator beside this book's rehearsals."""
    ours, said = published(run=False), estimates()
    columns = ("can say", "median", "nine of ten within", "worst")
    rows = [
        f"| estimator | torchtitan: {' | '.join(columns)} | Megatron-LM: {' | '.join(columns)} |",
        "|---" + "|--:" * 8 + "|",
    ]
    for name in (*ESTIMATORS, REHEARSED):
        cells = []
        for maker in ("titan", "megatron"):
            off = [_off(name, one, ours) for one in said if one["record"].startswith(maker)]
            known = sorted(size for size in off if size is not None)
            shown = [f"{size:.1%}" for size in (median(known), ninth(known), max(known))] if known else ["–"] * 3
            cells += [f"{len(known)} of {len(off)}", *shown]
        if set(cells[1::4]) != {"–"}:  # it can say some
            rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _off(name, one, ours):
    """How far an estimator is from what was published, as a share of it, or how far the rehearsal is."""
    if name == REHEARSED:
        share = ours.off(one["record"])
        return None if share is None else abs(share)
    size, stated = one["estimates"][name], ours.records[one["record"]].bytes
    return None if size is None else abs(size / stated - 1)


if __name__ == "__main__":
    print(table())
    STORE.write_text("".join(json.dumps(one) + "\n" for one in estimates()), encoding="utf-8")
    print(measured(), simulated(), sep="\n\n")
