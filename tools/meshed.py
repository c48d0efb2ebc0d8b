"""Setups in any dimensions of a mesh, as a reader may ask for them: each is refused in words, or its witnesses agree."""

from dataclasses import fields
from random import Random
from typing import get_args

from drawn import any_gpt, any_llama, any_setup, any_stages
from grid import RINGS
from witnesses import disagreements

import everybyte as eb
from everybyte.ask.choices import SHARDINGS
from everybyte.ask.mesh import Schedule, worst_routing


def meshed(seed: int) -> tuple[eb.Model, dict, int]:
    """Any GPT, Llama or mixture on GPUs in any dimensions of a mesh, as fields of a setup, and one of the GPUs: always the same for
    one seed.

    Without the mesh the setup fits the model, and each dimension divides what it must; it may be refused all the same.
    """
    draw = Random(8 * 10**6 + seed).choice
    schedule, usual = draw(get_args(Schedule)), draw([True, True, False])
    pipeline, context, data = draw([1, 1, 2, 3, 4]), draw([1, 1, 2, 4]), draw([1, 1, 2, 3, 8])
    tensor = draw([1, 1, 1, 2, 3, 4, 5, 6, 7, 8])
    stages = any_stages(schedule, draw)
    stages = stages if pipeline > 1 else 1
    expert = draw([1, context * data, draw([n for n in range(1, data + 1) if data % n == 0])])
    mesh = {"pipeline": pipeline, "context": context, "tensor": tensor}
    mesh |= {"schedule": schedule, "stages": stages} if pipeline > 1 else {}
    mesh |= {"rotation": draw(RINGS)} if context > 1 else {}
    mesh |= {name: draw([True, True, False]) for name in ("sequence_parallel", "loss_parallel")} if tensor > 1 else {}
    experts = {"expert": expert} | ({"routing": draw([1.0, 1.0, 1.25, expert])} if expert > 1 else {})
    while True:  # what does not go together without a mesh is drawn again
        model = draw([any_gpt, any_llama])(f"meshed {seed}", draw)
        sizes = {
            "vocabulary": tensor * model.vocabulary, "ffn_width": tensor * draw([8, 24]), "heads": tensor * model.heads,
            "expert_width": tensor * model.expert_width, "kv_heads": tensor * model.kv_heads, "head_width": model.head_width, "layers": pipeline * stages * draw([2, 3]),
            "positions": 0, "window": 0,
        }  # fmt: skip
        if model.family == "gpt":
            sizes |= {"width": tensor * model.width, "positions": 13440, "learned_positions": 13440}
        if model.experts:
            sizes |= {"experts": expert * draw([1, 2, 3]), "experts_per_token": draw([1, 2]) if expert > 1 else 1}
        try:
            model, setup = model.replace(**sizes), any_setup(model, draw)
            chosen = {"gpus": pipeline * context * tensor * data, "checkpoint_every": min(setup.checkpoint_every, 2)}
            chosen |= {"accumulation": pipeline * draw([2, 3])} if pipeline > 1 else {}
            chosen |= {"attention": "flash", "dropout": 0.0} if context > 1 else {}
            if usual:
                sharding = draw(SHARDINGS)
                chosen |= {
                    "replicas": 1, "no_sync": False, "offload": "none", "buckets": "copies", "loss": "plain", "loss_chunks": 8,
                    "optimizer": "adamw", "optimizer_impl": "foreach", "precision": draw(["bf16", "bf16-mixed", "fp32"]),
                    "master_gradients": "bf16", "sharding": sharding,
                }  # fmt: skip
                chosen |= {"sharding_units": "block"} if sharding in ("none", "zero1") else {}
            setup = setup.replace(**chosen)
            padded = context > 1 and setup.dtypes.compute == "fp32"
            setup = setup.replace(sequence=context * tensor * (64 if padded else 2) * draw([1, 2, 5]))
            setup.check_model(model)
        except ValueError:
            continue
        place, size = draw([0, 0, 0, draw(range(data))]), context * tensor
        if model.experts and expert > 1:
            experts["routing"] = min(experts["routing"], worst_routing(model, expert))
        rank = (draw(range(pipeline)) * data + place) * size + draw(range(size))
        named = {field.name: getattr(setup, field.name) for field in fields(setup)}
        return model, named | {"mesh": mesh | experts if model.experts else mesh}, rank


def outcome(seed: int) -> tuple[str, list[str]]:
    """Of `meshed(seed)` why it is refused, in words, or nothing; and what the witnesses say differently of what is priced."""
    model, asked, rank = meshed(seed)
    try:
        setup = eb.Setup(**asked)
        eb.budget(model, setup, 1, rank)
    except ValueError as error:
        return str(error), []
    try:
        return "", disagreements(model, setup, rank=rank)
    except ValueError as error:
        return "", [f"predicted, and not counted: {error}"]
