"""Both sides of the border, rehearsed: of random runs the largest batch that `eb.fit` says to fit, and the next one.

    python tools/borders.py 20 --seed 1

Each run is a model, a setup and a memory. With PyTorch's defaults and with expandable segments, the batch that fits is rehearsed with
that memory, and should run; the next one should run out. It needs the environment of `everybyte rehearse --set-up`.
"""

import argparse
import random
from dataclasses import replace

import everybyte as eb
from everybyte.answers.headroom import EXPANDABLE
from everybyte.catalog.outside import context
from everybyte.rehearsal import devices, place, steps
from everybyte.units import UNITS

GIB = UNITS["GiB"]
GPUS = ("h200", "a100-80gb", "rtx-4090")
#: Outside the allocator a rehearsal keeps the context free, as `eb.fit` does; nothing of the driver's, and no buffers of NCCL's.
KEPT = eb.Headroom(driver=0, nccl=0)


def drawn(seed: int):
    """(model, setup, GPU with its memory)."""
    draw = random.Random(seed)
    if draw.random() < 0.3:
        model = eb.model("llama-3.2-1b", code="reference").replace(layers=draw.randint(2, 8))
    else:
        model = eb.model(draw.choice(["gpt2", "gpt2", "gpt2-medium"])).replace(layers=draw.randint(3, 16))
    changes: dict = {"precision": draw.choice(["fp32", "bf16-mixed", "bf16-mixed", "bf16-master", "bf16"])}
    changes["optimizer_impl"] = draw.choice(["foreach", "fused"])
    changes["checkpointing"] = draw.choice(["none", "none", "full"])
    if draw.random() < 0.25:
        changes["accumulation"] = draw.choice([2, 3])
    if draw.random() < 0.35:
        changes |= {"gpus": 8, "sharding": draw.choice(["zero3", "zero3", "zero2", "none"])}
        if changes["sharding"] == "zero3" and changes["precision"] != "bf16-master" and draw.random() < 0.5:
            changes["offload"] = "cpu"
    setup = eb.Setup(sequence=draw.choice([256, 512, 1000, 1024]), **changes)
    least = eb.budget(model, setup.replace(batch=1)).peak
    room = round((least + draw.uniform(0.5, 10) * GIB) / 2**21) * 2**21
    card = eb.gpu(draw.choice(GPUS))
    return model, setup, replace(card, memory=room + context(card).most, memory_source="reported")


def border(seed: int):
    """Of a run: (what it is, [(configuration, batch, whether it should run, whether it does)])."""
    model, setup, card = drawn(seed)
    said = f"{seed}: {model.name} of {model.layers}, {card.name} with {card.memory / GIB:.2f} GiB, {changed(setup)}"
    where, rows = place.find(None), []
    gpu = devices.find(card.name, where.manifest["capabilities"])
    for configuration in ("", EXPANDABLE):
        found = eb.fit(model, setup, card, headroom=KEPT, configuration=configuration, whole=True)
        tried = [(found.value, True), (found.next.setup.batch, False)] if found.fits and found.next else []
        with steps.worker(where, gpu, memory=card.memory, expandable=bool(configuration)) as running:
            for batch, fits in tried:
                rehearsed, _ = steps.one(running, model, setup.replace(batch=batch), gpu, 600.0)
                rows.append((configuration or "defaults", batch, fits, not rehearsed.oom))
    return said, rows


def changed(setup):
    """The fields that are not the default, in words."""
    usual = eb.Setup().as_dict()
    return ", ".join(f"{n} {v}" for n, v in setup.as_dict().items() if v != usual[n] and n != "mesh")


def main(arguments=None):
    """Rehearse, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=int, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    options = parser.parse_args(arguments)
    counted: dict = {}
    for seed in range(options.seed, options.seed + options.runs):
        try:
            said, rows = border(seed)
        except ValueError as error:
            print(f"{seed}: not drawn: {error}", flush=True)
            continue
        for configuration, _, fits, ran in rows:
            right, all_ = counted.get((configuration, fits), (0, 0))
            counted[configuration, fits] = right + (fits == ran), all_ + 1
        wrong = [f"{c}, batch {b} {'ran' if ran else 'died'}" for c, b, fits, ran in rows if fits != ran]
        print(said, "; ".join(wrong) or "right", [(c, b) for c, b, fits, _ in rows if fits], flush=True)
    for (configuration, fits), (right, all_) in counted.items():
        print(f"{configuration}: {'what fits runs' if fits else 'the next dies'} in {right} of {all_}")


if __name__ == "__main__":
    main()
