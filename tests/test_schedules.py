"""Which stage has which blocks, and in which order a GPU runs them: PyTorch's own orders, and what does not go together."""

from itertools import accumulate
from types import SimpleNamespace

import pytest
from torch.distributed.pipelining.schedules import Schedule1F1B, _Action, _add_reduce_grad, _add_unshard_reshard

import everybyte as eb
from everybyte.ask import schedules
from everybyte.ask.schedules import ONE_STAGE, TWO_STAGES, Action
from everybyte.reference.mesh.pipeline import SCHEDULES

KINDS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}


def theirs(actions):
    """PyTorch's actions as the book's, overlapped ones one after another."""
    for action in actions:
        if action is not None and action.sub_actions:
            yield from theirs(action.sub_actions)
        elif action is not None and action.computation_type.name in KINDS:
            yield Action(KINDS[action.computation_type.name], action.stage_index, action.microbatch_index)


def shapes(schedule):
    """(mesh, micro-batches) of many sizes, what does not go together too."""
    several = (1,) if schedule in ONE_STAGE else (2,) if schedule in TWO_STAGES else (1, 2, 3)
    for places in (2, 3, 4, 7):
        for stages in several:
            for batches in (1, 2, 3, 5, 8, 9, 10, 14, 16):
                yield eb.Mesh(pipeline=places, schedule=schedule, stages=stages), batches


def made_of(mesh, batches):
    """A setup of that pipeline; ValueError where there is none."""
    return eb.Setup(gpus=mesh.size, accumulation=batches, mesh=mesh)


@pytest.mark.parametrize("schedule", [name for name, row in schedules.SCHEDULES.items() if row.pytorch])
def test_orders_are_pytorchs(schedule):
    """What PyTorch refuses is refused, and what it runs, it runs in this order (1F1B says its order by running alone)."""
    run = 0
    for mesh, batches in shapes(schedule):
        mine = [
            SimpleNamespace(num_stages=mesh.pipeline * mesh.stages, group_size=mesh.pipeline, group_rank=0, stage_index=i,
                            has_backward=True, submod=None)
            for i in schedules.stages_of(mesh, 0)
        ]  # fmt: skip
        try:
            made = SCHEDULES[schedule](mine[0] if schedule in ONE_STAGE else mine, batches, loss_fn=print)
        except ValueError:
            with pytest.raises(ValueError, match=r"Setup\.accumulation: .* allowed: "):
                made_of(mesh, batches)
            continue
        made_of(mesh, batches)
        for place in range(mesh.pipeline):
            if schedule != "1f1b":
                assert schedules.order(mesh, batches, place) == list(theirs(made.pipeline_order[place]))
                run += 1
    assert run > 20 or schedule == "1f1b"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_action_runs_once_and_when_it_may(schedule):
    for mesh, batches in shapes(schedule):
        try:
            made_of(mesh, batches)
        except ValueError:
            continue
        turns = [turn for gpu in schedules.timed(mesh, batches) for turn in gpu]
        done = {(turn.action.kind, turn.action.stage, turn.action.batch) for turn in turns}
        assert len(done) == len(turns)
        for stage in range(mesh.pipeline * mesh.stages):
            for i in range(batches):
                assert ("F", stage, i) in done
                assert (("B", stage, i) in done) != ({("I", stage, i), ("W", stage, i)} <= done)


@pytest.mark.parametrize(
    ("schedule", "stages", "found"),
    [
        ("gpipe", 1, [8, 8, 8, 8]),
        ("1f1b", 1, [4, 3, 2, 1]),
        ("interleaved-1f1b", 2, [11, 9, 7, 5]),
        ("looped-bfs", 2, [16] * 4),
    ],
)
def test_in_flight(schedule, stages, found):
    """P - r micro-batches of 1F1B, all m of GPipe; of v stages each a round more, and two for each hop to the last GPU."""
    mesh = eb.Mesh(pipeline=4, schedule=schedule, stages=stages)
    now = []
    for place in range(4):
        live = most = 0
        for action in schedules.order(mesh, 8, place):
            live += {"F": 1, "I": 0}.get(action.kind, -1)
            most = max(most, live)
        now.append(most)
    assert now == found
    if stages == 1:
        assert [schedules.in_flight(mesh, 8, place) for place in range(4)] == [{p: n} for p, n in enumerate(found)]


@pytest.mark.parametrize("places", range(2, 32))
def test_1f1b_on_a_v_has_as_much_in_flight_everywhere(places):
    """In stages half as long as 1F1B's, whose first GPU has `places` in flight: a third more, so two thirds of it."""
    mesh, found = eb.Mesh(pipeline=places, schedule="1f1b-v", stages=2), []
    for place in range(places):
        changes = [{"F": 1, "B": -1}[action.kind] for action in schedules.order(mesh, 4 * places, place)]
        found.append(max(accumulate(changes)))
    assert 4 * places / 3 - 1 <= min(found) <= max(found) <= 4 * places / 3 + 2


def test_what_is_left_over_goes_to_the_second_stage_on():
    assert schedules.cut(10, 4) == [range(2), range(2, 5), range(5, 8), range(8, 10)]
    for layers in range(1, 40):
        for stages in range(1, layers + 1):
            found = schedules.cut(layers, stages)
            assert [i for blocks in found for i in blocks] == list(range(layers))
            assert max(map(len, found)) - min(map(len, found)) <= 1
            assert len(found[0]) == layers // stages


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        ({"accumulation": 3}, r"Setup\.accumulation: 3 micro-batches with schedule '1f1b' on 4 .* allowed: from 4 on"),
        ({"schedule": "zbv"}, r"Mesh\.stages: 1 with schedule 'zbv', .* allowed: 2"),
        ({"schedule": "gpipe", "stages": 2}, r"Mesh\.stages: 2 with schedule 'gpipe', .* allowed: 1"),
        ({"schedule": "interleaved-1f1b", "stages": 2, "accumulation": 9}, r"Setup\.accumulation: 9 .* allowed: such as 8 or 10"),
        ({"schedule": "dualpipev", "stages": 2, "accumulation": 7}, r"Setup\.accumulation: 7 .* allowed: from 8 on"),
    ],
)  # fmt: skip
def test_a_schedule_that_does_not_run_is_refused(setup, said):
    mesh = eb.Mesh(pipeline=4, **{k: setup[k] for k in ("schedule", "stages") if k in setup})
    with pytest.raises(ValueError, match=said):
        eb.Setup(gpus=4, accumulation=setup.get("accumulation", 8), mesh=mesh)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"gpus": 4, "mesh": eb.Mesh(pipeline=2, schedule="zbv", stages=2)},
            r"Mesh\.schedule: 'zbv' .* and sharding 'none' on 4 gpus, whose backward is divided, .* allowed: schedules whose is not",
        ),
        ({"gpus": 4, "loss": "chunked"}, r"Setup\.loss: 'chunked' .* on 4 gpus: .* no stage's DDP; allowed: 'plain'"),
        ({"precision": "bf16-mixed"}, r"Setup\.precision: 'bf16-mixed' .* allowed: fp32, bf16-master, bf16, or sharding"),
        (
            {"mesh": eb.Mesh(pipeline=2, context=2, schedule="zbv", stages=2), "gpus": 4, "dropout": 0.0},
            r"Mesh\.schedule: 'zbv' with mesh pipeline=2 context=2 .*, whose backward is divided, is not derived",
        ),
        ({"sharding": "zero2", "loss": "chunked"}, r"Setup\.loss: 'chunked' .* allowed: 'plain'"),
        ({"sharding": "zero2", "sharding_units": "block+ends"}, r"Setup\.sharding_units: 'block\+ends' .* allowed: 'block' or"),
        ({"sharding": "zero2", "gpus": 8, "replicas": 2}, r"Setup\.replicas: 2 .* allowed: 1"),
        ({"sharding": "zero3", "offload": "cpu"}, r"Setup\.offload: 'cpu' with pipeline 2 and gpt2, whose .* or an untied model"),
        (
            {"checkpointing": "operations", "mesh": eb.Mesh(pipeline=2, schedule="zbv", stages=2)},
            r"Setup\.checkpointing: 'operations' .* backward is divided: .* once .* allowed: 'none', 'full'",
        ),
        (
            {"sharding": "zero3", "mesh": eb.Mesh(pipeline=2, schedule="interleaved-zero-bubble", stages=2)},
            r"Setup\.sharding: 'zero3' .* 'interleaved-zero-bubble'.* allowed: 'zero2'",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_with_a_pipeline_is_refused(changes, said):
    model = eb.model("gpt2")
    setup = eb.Setup(gpus=2, accumulation=4, mesh=eb.Mesh(pipeline=2)).replace(**changes)
    for witness in (eb.budget, eb.dry_run):
        with pytest.raises(ValueError, match=said):
            witness(model, setup)


def test_experts_that_fsdp_gathers_are_recomputed_where_all_forwards_gathered_them():
    """After a backward they stand gathered: the next forward's region has no gathering, and its recomputation would have one."""
    model = eb.Model(
        name="mixture", layers=4, width=32, heads=4, head_width=8, kv_heads=4, vocabulary=104, positions=0, learned_positions=0, gated=True,
        ffn_width=32, fused=False, tied=False, norm="rmsnorm", qkv_bias=False, out_bias=False, ffn_bias=False, experts=4,
        experts_per_token=2, expert_width=32,
    )  # fmt: skip
    setup = eb.Setup(batch=1, sequence=16, gpus=8, accumulation=4, precision="bf16", checkpointing="operations", sharding="zero3",
                     mesh=eb.Mesh(pipeline=2, expert=2))  # fmt: skip
    for witness in (eb.budget, eb.dry_run):
        with pytest.raises(
            ValueError, match=r"^Setup\.checkpointing: 'operations' .* gathered, .* or sharding 'zero2'"
        ):
            witness(model, setup)
    gpipe = setup.replace(mesh=eb.Mesh(pipeline=2, expert=2, schedule="gpipe"))
    for goes in (gpipe, setup.replace(sharding="zero2")):
        assert eb.budget(model, goes).peak == eb.dry_run(model, goes).peak


def test_what_does_not_go_with_stages_of_divided_matrices_is_refused():
    model = eb.Model(name="even", layers=4, width=64, heads=2, vocabulary=102, positions=64, tied=False)
    setup = eb.Setup(batch=1, sequence=64, gpus=4, accumulation=4, mesh=eb.Mesh(pipeline=2, tensor=2))
    with pytest.raises(
        ValueError, match=r"Mesh\.tensor: 2 with pipeline 2 and even, .* allowed: 1, or an untied model"
    ):
        eb.budget(model.replace(tied=True), setup)
    for witness in (eb.budget, eb.dry_run):
        divided = setup.replace(mesh=eb.Mesh(pipeline=2, tensor=2, schedule="interleaved-zero-bubble", stages=2))
        with pytest.raises(
            ValueError, match=r"Mesh\.schedule: 'interleaved-zero-bubble' .*, whose backward is divided"
        ):
            witness(model, divided)


def test_a_weight_of_two_stages_is_in_no_unit_of_fsdp():
    mesh = eb.Mesh(pipeline=2, schedule="zbv", stages=2)
    with pytest.raises(
        ValueError, match=r"Setup\.sharding: 'zero2' .* one weight, .* allowed: 'none', another schedule"
    ):
        eb.dry_run(eb.model("gpt2"), eb.Setup(gpus=4, accumulation=4, sharding="zero2", mesh=mesh))


@pytest.mark.parametrize("schedule", ["interleaved-1f1b", "looped-bfs"])
@pytest.mark.parametrize("stages", [2, 5])
def test_what_fsdp_gathers_and_lets_go_between_actions_is_pytorchs(schedule, stages):
    mesh = eb.Mesh(pipeline=2, schedule=schedule, stages=stages)
    for place in range(2):
        compute = schedules.turns(mesh, 6, place)
        theirs = _add_reduce_grad(_add_unshard_reshard([_Action.from_str(str(a)) for _, a in compute]), 6)
        mine = schedules.gathering(compute, 6)
        kinds = {"unshard": "UNSHARD", "reshard": "RESHARD", "reduce": "REDUCE_GRAD"}
        named = (f"{a.stage}{kinds[a.kind]}" if a.kind in kinds else str(a) for _, a in mine)
        assert [_Action.from_str(name) for name in named] == theirs


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "looped-bfs", "interleaved-1f1b"])
def test_turns_repeat(schedule):
    """What is traced of many micro-batches is what runs of few: the same actions, turn by turn, until they drain."""
    mesh = eb.Mesh(pipeline=3, schedule=schedule, stages=1 if schedule in ONE_STAGE else 2)
    for place in range(3):
        few, many = ([(turn, a.kind, a.stage) for turn, a in schedules.turns(mesh, m, place)] for m in (18, 36))
        for turn in range(5):
            assert [x for x in few if x[0] == turn] == [x for x in many if x[0] == turn]
        if schedule not in ("gpipe", "looped-bfs"):
            pairs, _, whole = schedules.rounds(mesh, 36, place)
            first = 3 - place if schedule == "1f1b" else 1  # of which each forward before the first pair is a turn
            assert all(len([x for x in many if x[0] == turn]) == 2 * pairs for turn in range(first, first + whole))


def test_too_few_blocks_are_refused():
    setup = eb.Setup(gpus=16, accumulation=16, mesh=eb.Mesh(pipeline=16))
    with pytest.raises(ValueError, match=r"Mesh\.pipeline: 16 .* gpt2 has 12 blocks; allowed: at most 12 stages"):
        eb.budget(eb.model("gpt2"), setup)
    setup = eb.Setup(gpus=5, accumulation=5, checkpointing="every-k", checkpoint_every=3, mesh=eb.Mesh(pipeline=5))
    with pytest.raises(ValueError, match=r"Setup\.checkpoint_every: 3 is more than the 2 blocks .* allowed: 1 to 2"):
        eb.budget(eb.model("gpt2"), setup)


@pytest.mark.parametrize("ask", ["plan", "peaks", "formula", "derive"])
def test_what_knows_no_pipeline_refuses_it(ask):
    model, setup = eb.model("gpt2"), eb.Setup(gpus=2, accumulation=4, mesh=eb.Mesh(pipeline=2))
    from everybyte import formulas
    from everybyte.theory.budget import peaks

    asked = {
        "plan": lambda: eb.plan(model, setup, "h200"),
        "peaks": lambda: peaks(model, setup, [1], [8]),
        "formula": lambda: formulas.formula("phase.rest").at(model, setup),
        "derive": lambda: eb.derive(model, setup),
    }
    with pytest.raises(ValueError, match="pipeline=2"):
        asked[ask]()


def test_a_fit_is_that_of_the_heaviest_gpu():
    model, setup = eb.model("gpt2"), eb.Setup(gpus=4, accumulation=8, sequence=512, mesh=eb.Mesh(pipeline=4))
    found = eb.fit(model, setup, "rtx-4090")
    peaks = [eb.budget(model, setup.replace(batch=found.value), 512, rank).peak for rank in range(4)]
    assert found.peak == max(peaks) > min(peaks)


def test_a_model_that_the_book_does_not_cut_is_refused():
    setup = eb.Setup(gpus=2, accumulation=2, mesh=eb.Mesh(pipeline=2))
    with pytest.raises(ValueError, match=r"dry_run\.model: .* allowed: a Model of GPT's or Llama's kind"):
        eb.dry_run(lambda: None, setup)
    assert Schedule1F1B is SCHEDULES["1f1b"]


def test_offload_beside_a_divided_backward_is_refused():
    mesh = eb.Mesh(pipeline=2, schedule="interleaved-zero-bubble", stages=2)
    setup = eb.Setup(gpus=2, accumulation=4, sharding="zero2", offload="cpu", mesh=mesh)
    for witness in (eb.budget, eb.dry_run):
        with pytest.raises(ValueError, match=r"Setup\.offload: 'cpu' with mesh .*, whose backward is divided"):
            witness(eb.model("gpt2").replace(tied=False), setup)
