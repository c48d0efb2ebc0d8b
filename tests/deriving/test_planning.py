"""A plan for a model that the theory does not derive, by dry runs; where the theory derives it too, the two say the same."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import everybyte as eb
from everybyte.answers.plan import made, work
from everybyte.deriving.planning import Counting

TOKENS = {"tokens": (("B", "S"), torch.int64)}
SETUP = eb.Setup(batch=4, sequence=64)


class Wide(nn.Module):
    """Mostly logits."""

    def __init__(self):
        super().__init__()
        self.token, self.head = nn.Embedding(50_000, 64), nn.Linear(64, 50_000)

    def forward(self, tokens):
        return F.cross_entropy(self.head(self.token(tokens)).flatten(0, 1), tokens.flatten())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "switches"),
    [
        ("gpt2", {}),
        ("gpt2", {"precision": "bf16-mixed", "accumulation": 5, "optimizer_impl": "fused"}),
        ("gpt2", {"precision": "bf16", "checkpointing": "full", "attention": "eager"}),
        ("llama-3.2-1b", {"precision": "bf16-master", "optimizer": "momentum"}),
        ("mixtral-8x7b", {"precision": "bf16"}),
    ],
)
def test_what_is_counted_is_what_the_theory_says(name, switches):
    model = eb.model(name, code="reference").replace(layers=2)
    setup, counting = SETUP.replace(**switches), Counting(model)
    by_theory = work(model, setup)
    assert counting.made(setup) == made(model, setup)
    assert counting.flops(setup) == by_theory.flops
    assert 2 * counting.made(setup) + counting.updated(setup) == by_theory.moved
    assert counting.top(setup)[0] == eb.budget(model, setup, 512).peak


def test_a_module_of_ones_own_has_a_plan():
    gpu = eb.gpu("t4")
    setup = eb.Setup(batch=64, sequence=1024)
    found = eb.plan(Wide, setup, gpu, batch=TOKENS)
    assert found.asked.peak > found.usable >= found.best.peak
    assert set(found.best.kinds) <= {"accumulation", "precision", "optimizer_impl"}
    best = found.best.setup
    counted = eb.dry_run(Wide, best, 512, {"tokens": ((best.batch, best.sequence), torch.int64)})
    assert best.accumulation > 1 and found.best.peak == counted.peak
    assert all(r.setup.batch * r.setup.accumulation == 64 for r in found.rungs)
    assert "Wide on t4" in repr(found) and found.as_dict()["best"]["peak"] == found.best.peak


def test_a_configuration_takes_checkpointing_and_no_chunks():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, vocab_size=331
    )
    found = eb.plan(config, eb.Setup(batch=2, sequence=512, attention="eager"), "rtx-4090")
    assert {r.setup.checkpointing for r in found.rungs} == {"none", "full"}
    assert {r.setup.attention for r in found.rungs} == {"eager", "flash"}
    assert {r.setup.loss for r in found.rungs} == {"plain"}
    full = next(r for r in found.rungs if r.switches == {"checkpointing": "full"})
    assert full.saved > 0 and full.flops > 0 and found.best is found.asked


def test_what_has_no_plan_is_refused_by_name():
    derivation = eb.derive(Wide, SETUP, TOKENS)
    for model, setup, said in (
        (derivation, SETUP, "a derivation of Wide says what one setup takes"),
        (Wide, SETUP.replace(gpus=2), "Setup.gpus: 2 with a type"),
        (Wide, SETUP.replace(checkpointing="full"), "Setup.checkpointing: 'full' means nothing"),
    ):
        with pytest.raises(ValueError, match=said):
            eb.plan(model, setup, "t4", batch=TOKENS)
    with pytest.raises(ValueError, match="derive.batch: None"):
        eb.plan(Wide, SETUP, "t4")


def test_the_fewest_gpus_of_ones_own_are_counted():
    setup = SETUP.replace(sharding="zero3")
    batch = {"tokens": ((4, 64), torch.int64)}

    def peak(gpus):
        return eb.dry_run(Wide, setup.replace(gpus=gpus), 512, batch).peak

    room = eb.Headroom(driver=0, context=0, workspace=0, fragmentation=0, nccl=0)
    found = eb.fit(Wide, setup, eb.Gpu(memory=f"{peak(3)} B"), "gpus", room, batch=TOKENS)
    assert (found.value, found.peak) == (3, peak(3)) and found.witness.witness == "dry run"
    assert found.next.peak == peak(2) > peak(3) and "2 GPUs are" in found.why() and "Wide on" in repr(found)
    with pytest.raises(
        ValueError, match=r"fit\.vary: 'gpus' of a derivation of Wide, which is of 1; allowed: what it was derived"
    ):
        eb.fit(eb.derive(Wide, SETUP, TOKENS), SETUP, "t4", "gpus")


#: All of a GPU's memory is the allocator's; and where a share of it is said to fragment, nothing is simulated.
ALL, UNPLAYED = (eb.Headroom(driver=0, context=0, workspace=0, fragmentation=f) for f in (None, 22 * 2**20))


def test_a_config_is_played_through_the_allocator_as_the_catalogs_equal_is():
    pytest.importorskip("transformers")
    from everybyte.dryrun.hugging_face import config_of

    model = eb.model("gpt2", code="transformers").replace(layers=3, width=128, heads=2, vocabulary=3000)
    setup, gpu = eb.Setup(sequence=256), eb.Gpu(memory="1 GiB")
    by_formula, counted = (eb.fit(one, setup, gpu, headroom=ALL).as_dict() for one in (model, config_of(model)))
    assert {name for name in by_formula if by_formula[name] != counted[name]} == {"model"}
    assert counted["value"] < counted["expandable"]["value"] and counted["reserved"] < gpu.memory


def test_of_a_module_of_ones_own_the_value_found_runs_and_the_next_dies():
    gpu = eb.Gpu(memory="600 MiB")
    found, unplayed = (eb.fit(Wide, SETUP, gpu, headroom=room, batch=TOKENS) for room in (ALL, UNPLAYED))
    assert unplayed.reserved is None and unplayed.value > found.expandable.value > found.value
    for fit, configuration in ((found, ""), (found.expandable, "expandable_segments:True")):
        for value, dies in ((fit.value, False), (fit.value + 1, True)):
            trace = eb.dry_run(Wide, SETUP.replace(batch=value), batch={"tokens": ((value, 64), torch.int64)})
            played = trace.on(gpu, configuration, gpu.memory, steps=4, whole=False)
            assert (played.failed is not None) == dies
            assert dies or fit.reserved.reserved == played.reserved
    assert found.why().startswith(f"batch {found.value + 1} fits by its peak, and the allocator runs out")
    assert "Simulated with PyTorch's defaults" in repr(found) and "by its peak alone" in repr(unplayed)


def test_a_formula_whose_model_is_not_known_any_more_is_not_played():
    derivation = eb.Derivation.from_dict(eb.derive(Wide, SETUP, TOKENS).as_dict())
    found = eb.fit(derivation, SETUP, "1 GiB", headroom=ALL)
    assert found.reserved is None and "Wide is known by its formula alone" in repr(found)
