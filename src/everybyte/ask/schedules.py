"""Pipelines: which blocks each stage has, which stages each GPU, and the order in which a GPU runs them.

Sources: Huang et al. 2018, arXiv:1811.06965 (GPipe); Narayanan et al. 2021, arXiv:2006.09503 (1F1B) and arXiv:2104.04473
(interleaved); Lamy-Poirier 2022, arXiv:2211.05953 (breadth first); Qi et al. 2023, arXiv:2401.10241 (zero bubble), and 2024,
arXiv:2405.15362 (1F1B-V); DeepSeek-AI 2024, arXiv:2412.19437 (DualPipe). The orders are those of PyTorch's
`torch/distributed/pipelining/schedules.py`, where it has the schedule.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle, pairwise
from types import MappingProxyType
from typing import Literal, NamedTuple

Schedule = Literal[
    "gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "interleaved-zero-bubble", "1f1b-v", "zbv", "dualpipev"
]


class Action(NamedTuple):
    """One thing that a GPU does: `kind` is `F` (forward), `B` (backward), or of a divided backward `I` (the gradients of the
    stage's input) and `W` (those of its weights); of which stage, on which micro-batch."""

    kind: str
    stage: int
    batch: int

    def __str__(self):
        return f"{self.stage}{self.kind}{self.batch}"


def cut(layers: int, stages: int) -> list[range]:
    """The blocks of each stage, by their numbers.

    Stages have equally many. What is left over goes, one block each, to the stages from the second on: the first has the most
    micro-batches in flight.
    """
    each, left = divmod(layers, stages)
    ends = accumulate((each + (0 < stage <= left) for stage in range(stages)), initial=0)
    return [range(*between) for between in pairwise(ends)]


def stages_of(mesh, place: int) -> list[int]:
    """The stages of the GPU at a place of the pipeline, in the order of the model.

    Several go round and round; those of `TWO_STAGES` there and back again, so that the first GPU has the last one too.
    """
    if mesh.schedule in TWO_STAGES:
        return [place, 2 * mesh.pipeline - 1 - place]
    return [place + turn * mesh.pipeline for turn in range(mesh.stages)]


def blocks_of(layers: int, mesh, place: int) -> list[range]:
    """The blocks of each stage of the GPU at a place of the pipeline."""
    every = cut(layers, mesh.pipeline * mesh.stages)
    return [every[stage] for stage in stages_of(mesh, place)]


# Orders.


def order(mesh, batches: int, place: int) -> list[Action]:
    """What the GPU at a place of the pipeline runs, one action after another.

    Args:
        batches: micro-batches of a step.
    """
    return list(SCHEDULES[mesh.schedule].actions(mesh, batches, place))


def rounds(mesh, batches: int, place: int) -> tuple[int, int, int]:
    """(actions' pairs of one round, forwards before the first backward, whole rounds of pairs) of schedules that take turns.

    From a round of pairs to the next, each a forward and a backward, memory is the same but for what a micro-batch leaves for good.
    """
    if mesh.schedule == "1f1b":
        ahead = min(batches, mesh.pipeline - place)
        return 1, ahead, batches - ahead
    each, stages = batches // max(1, batches // mesh.pipeline), len(stages_of(mesh, place))
    before, forwards, _ = _rounds(mesh, batches, place)
    return each * stages, before, (len(forwards) - before) // (each * stages)


def turns(mesh, batches: int, place: int) -> list[tuple[int, Action]]:
    """`order`, each action with its turn: a micro-batch's of schedules that run all forwards first.

    Of others what comes before the first round is turn 0, and what is left after the last is one more; of 1F1B, whose rounds are
    pairs, each forward before them and each backward after them is a turn of its own.
    """
    actions = order(mesh, batches, place)
    if mesh.schedule in ALL_FIRST:
        return [(action.batch, action) for action in actions]
    if SCHEDULES[mesh.schedule].hops is None:
        return [(0, action) for action in actions]
    pairs, before, whole = rounds(mesh, batches, place)
    alone = mesh.schedule == "1f1b"
    found = []
    for i, action in enumerate(actions):
        paired = min(max(i - before, 0), 2 * pairs * whole) // (2 * pairs)
        outside = min(i, before) + max(i - before - 2 * whole, 0) if alone else int(i >= before)
        found.append((outside + paired, action))
    return found


def gathering(actions: list[tuple[int, Action]], batches: int, most: int = 3) -> list[tuple[int, Action]]:
    """What a GPU of several stages runs where FSDP divides each: `unshard` and `reshard` of a stage, and `reduce`, besides.

    The next `most` stages that are asked for are whole, others are freed; gradients are sent after a stage's last backward.
    Source: `_add_unshard_reshard` and `_add_reduce_grad` in PyTorch's `schedules.py`.
    """
    found: list[tuple[int, Action]] = []
    active: list[int] = []
    done: dict[int, int] = {}
    turn = 0
    for i, (turn, action) in enumerate(actions):
        soon = list(dict.fromkeys(later.stage for _, later in actions[i:]))[:most]
        for stage in [stage for stage in active if stage not in soon]:
            active.remove(stage)
            found.append((turn, Action("reshard", stage, 0)))
        for stage in [stage for stage in soon if stage not in active]:
            active.append(stage)
            found.append((turn, Action("unshard", stage, 0)))
        found.append((turn, action))
        if action.kind in "BW":
            done[action.stage] = done.get(action.stage, 0) + 1
            if done[action.stage] == batches:
                found.append((turn, Action("reduce", action.stage, 0)))
    return found + [(turn, Action("reshard", stage, 0)) for stage in active]


def _gpipe(mesh, batches, place) -> Iterator[Action]:
    """All forwards, then all backwards. Source: arXiv:1811.06965, figure 2c."""
    yield from (Action("F", place, i) for i in range(batches))
    yield from (Action("B", place, i) for i in range(batches))


def _breadth_first(mesh, batches, place):
    """All forwards of a stage, then of the next; backwards the other way round. Source: arXiv:2211.05953, figure 3."""
    mine = stages_of(mesh, place)
    yield from (Action("F", stage, i) for stage in mine for i in range(batches))
    yield from (Action("B", stage, i) for stage in reversed(mine) for i in reversed(range(batches)))


def _rounds(mesh, batches, place):
    """(forwards before the first pair of a forward and a backward, all of them in order, all backwards in order) of an interleaved schedule."""
    each = batches // max(1, batches // mesh.pipeline)  # micro-batches of a round
    mine, hops = stages_of(mesh, place), SCHEDULES[mesh.schedule].hops
    before = min((len(mine) - 1) * each + hops * (mesh.pipeline - 1 - place), batches * len(mine))
    starts = range(0, batches, each)

    def through(stages):
        return [(stage, i) for start in starts for stage in stages for i in range(batches)[start : start + each]]

    return before, through(mine), through(mine[::-1])


def _one_forward_one_backward(mesh, batches, place):
    """A forward and a backward in turn; through several stages a round of micro-batches at a time.

    Source: arXiv:2006.09503, 2.2; of several stages, arXiv:2104.04473, 2.2 and figure 4.
    """
    before, forwards, backwards = _rounds(mesh, batches, place)
    yield from (Action("F", *one) for one in forwards[:before])
    for forward, backward in zip(forwards[before:], backwards, strict=False):
        yield Action("F", *forward)
        yield Action("B", *backward)
    yield from (Action("B", *one) for one in backwards[len(forwards) - before :])


def _interleaved_zero_bubble(mesh, batches, place):
    """The same with backward divided: the weights' gradients fill what was idle. Source: arXiv:2401.10241, 3.1, ZB-H1."""
    before, forwards, backwards = _rounds(mesh, batches, place)
    yield from (Action("F", *one) for one in forwards[:before])
    for i, backward in enumerate(backwards):
        if before + i < len(forwards):
            yield Action("F", *forwards[before + i])
        yield Action("I", *backward)
        if i >= place:
            yield Action("W", *backwards[i - place])
    yield from (Action("W", *one) for one in backwards[max(0, len(backwards) - place) :])


def _one_forward_one_backward_v(mesh, batches, place):
    """1F1B on stages that go down and back up: as much in flight on every GPU, two thirds of what 1F1B has on its first.

    A micro-batch starts every 6 forwards' time, in which a GPU runs a forward and a backward, as long as two, of either stage.
    Forwards follow one another at once; backwards wait for 3 after each third stage, so that no two meet on a GPU. Source: Qi et al.
    2024, arXiv:2405.15362, V-shaped building blocks.
    """
    places, last = mesh.pipeline, 2 * mesh.pipeline - 1
    begins, ahead = 2 * places + 3 * (places % 3 == 0), -(places + 2) % 3
    starts = {}
    for stage in stages_of(mesh, place):
        back = last - stage  # backwards of its micro-batch that come before
        starts["F", stage] = stage
        starts["B", stage] = begins + 2 * back + 3 * ((ahead + back) // 3)
    every = ((start + 6 * i, Action(*one, i)) for one, start in starts.items() for i in range(batches))
    yield from (action for _, action in sorted(every))


class _Counting:
    """Actions on a stage on the way down and one on the way back up, whose micro-batches are counted by stage and kind."""

    def __init__(self, down: int, up: int):
        self.stages = {"down": down, "up": up}
        self.found: list[Action] = []
        self.next: dict[tuple[str, int], int] = {}
        self.owed: list[tuple[int, int]] = []

    def run(self, times: int, *words: str) -> None:
        """Each of the words in turn, this often: `F up` is the next forward of that stage; `W` alone, of the weights' gradients of either
        stage those that have waited longest, if any do."""
        for word in words * times:
            kind, _, way = word.partition(" ")
            if way:
                self._next(kind, self.stages[way])
            elif self.owed:
                self.found.append(Action(kind, *self.owed.pop(0)))

    def _next(self, kind, stage):
        key = ("I" if kind == "B" else kind), stage
        batch = self.next[key] = self.next.get(key, -1) + 1
        self.found.append(Action(kind, stage, batch))
        if kind == "B":
            self.next["W", stage] = batch
        elif kind == "I":
            self.owed.append((stage, batch))


def _there_and_back(mesh, batches, place):
    """ZB-V: a forward, a backward of each kind, on either of two stages in turn. Source: arXiv:2401.10241, section 6."""
    places, done, after = mesh.pipeline, _Counting(*stages_of(mesh, place)), mesh.pipeline - place
    done.run(2 * after - 1, "F down")
    done.run(place, "F up", "F down")
    done.run(after, "F up", "I up", "W up")
    done.run(max(place, batches - places - after + 1), "F down", "I down", "W down", "F up", "I up", "W up")
    done.run(after - 1, "I down", "W down", "F up", "I up", "W up")
    done.run(place, "I down", "I up")
    done.run(after, "I down", "W down")
    done.run(place, "W up")
    done.run(place, "W down")
    yield from (action for action in done.found if action.batch < batches)


def _dual_pipe_v(mesh, batches, place):
    """DualPipeV: both directions of a V overlap. Source: arXiv:2412.19437, 3.2.1; github.com/deepseek-ai/DualPipe."""
    places, done, after = mesh.pipeline, _Counting(*stages_of(mesh, place)), mesh.pipeline - place - 1
    done.run(2 * after, "F down")
    done.run(place + 1, "F down", "F up")
    done.run(after, "I up", "W", "F up")
    done.run(batches - 2 * places + place + 1, "F down", "B up", "F up", "B down")
    done.run(after, "B up", "F up", "B down")
    ways = cycle(("up", "down"))  # from the middle of these backwards on each is divided
    done.run(1, *(f"{kind} {way}" for kind, way in zip("B" * (place + 1) + "I" * (place + 1), ways, strict=False)))
    done.run(after, "W", "I down")
    done.run(place + 1, "W")
    yield from done.found


@dataclass(frozen=True, kw_only=True)
class Order:
    """One schedule: a row of `SCHEDULES`.

    Attributes:
        actions: what the GPU at a place runs: a function of the mesh, the micro-batches and the place.
        pytorch: its name in PyTorch, and in torchtitan's files; None where PyTorch has none: its runtime then runs these actions.
        stages: of each GPU; None for any number. Two go down and back up again.
        least: micro-batches that it needs, for each GPU in a row.
        divided: whether it runs the weights' gradients apart from the inputs'.
        all_first: whether all forwards come before the first backward.
        hops: forwards before the first backward, for each GPU between this and the last; None where no closed formula counts those.
    """

    actions: Callable[..., Iterator[Action]]
    pytorch: str | None = None
    stages: int | None = None
    least: int = 0
    divided: bool = False
    all_first: bool = False
    hops: int | None = None

    @property
    def predicted(self) -> bool:
        """Whether the theory follows it: not where backward is divided."""
        return not self.divided


SCHEDULES: Mapping[Schedule, Order] = MappingProxyType(
    {
        "gpipe": Order(actions=_gpipe, pytorch="GPipe", stages=1, all_first=True, hops=0),
        "1f1b": Order(actions=_one_forward_one_backward, pytorch="1F1B", stages=1, least=1, hops=1),
        "interleaved-1f1b": Order(actions=_one_forward_one_backward, pytorch="Interleaved1F1B", hops=2),
        "looped-bfs": Order(actions=_breadth_first, pytorch="LoopedBFS", all_first=True, hops=0),
        "interleaved-zero-bubble": Order(
            actions=_interleaved_zero_bubble, pytorch="InterleavedZeroBubble", divided=True, hops=1
        ),
        "1f1b-v": Order(actions=_one_forward_one_backward_v, stages=2),
        "zbv": Order(actions=_there_and_back, pytorch="ZBVZeroBubble", stages=2, divided=True, hops=1),
        "dualpipev": Order(actions=_dual_pipe_v, pytorch="DualPipeV", stages=2, least=2, divided=True),
    }
)
#: Schedules of one stage a GPU; those whose GPUs have two, one on the way down and one on the way back up; others.
ONE_STAGE, TWO_STAGES, ANY_STAGES = (
    tuple(n for n, row in SCHEDULES.items() if row.stages == stages) for stages in (1, 2, None)
)
#: Schedules that run the weights' gradients apart from the inputs'; those that run all forwards first.
SPLIT = tuple(name for name, row in SCHEDULES.items() if row.divided)
ALL_FIRST = tuple(name for name, row in SCHEDULES.items() if row.all_first)


def in_flight(mesh, batches: int, place: int) -> dict[int, int]:
    """Stage -> the most of its micro-batches whose activations stand at once: from their forward to the end of their backward.

    Of a backward that is divided, to the gradients of the weights.
    """
    most, now = {}, {}
    for kind, stage, _ in order(mesh, batches, place):
        now[stage] = now.get(stage, 0) + {"F": 1, "I": 0}.get(kind, -1)
        most[stage] = max(most.get(stage, 0), now[stage])
    return most


class Turn(NamedTuple):
    """An action, from when to when it runs."""

    action: Action
    start: float
    end: float


def flying(turns: Sequence[Turn]) -> list[tuple[float, int]]:
    """(when, how many micro-batches of its stages stand on the GPU from then on): from a forward's start to its backward's end."""
    changes = [(turn.start, 1) for turn in turns if turn.action.kind == "F"]
    changes += [(turn.end, -1) for turn in turns if turn.action.kind in "BW"]
    now, found = 0, [(0.0, 0)]
    for when, change in sorted(changes):
        now += change
        found.append((when, now))
    return found


#: How long each action takes, in forwards; a whole backward is both its halves.
TIMES = {"F": 1, "I": 1, "W": 1, "B": 2}


def timed(mesh, batches: int, times=None) -> list[list[Turn]]:
    """When each GPU runs what, in the unit of `times`, if nothing waits but for what it needs; sending takes no time.

    Args:
        times: kind of action -> how long one takes on a stage.
    """
    times = times or TIMES
    todo = [deque(order(mesh, batches, place)) for place in range(mesh.pipeline)]
    found: list[list[Turn]] = [[] for _ in todo]
    ends: dict[tuple[str, int, int], float] = {}
    clock, last = [0.0] * len(todo), mesh.pipeline * mesh.stages - 1
    while left := sum(map(len, todo)):
        for place, actions in enumerate(todo):
            while actions and all(need in ends for need in _needs(actions[0], last)):
                action = actions.popleft()
                start = max([clock[place], *(ends[need] for need in _needs(action, last))])
                clock[place] = end = start + times[action.kind]
                ends["I" if action.kind == "B" else action.kind, action.stage, action.batch] = end
                found[place].append(Turn(action, start, end))
        if sum(map(len, todo)) == left:
            raise RuntimeError(f"schedule {mesh.schedule!r} waits for itself")
    return found


def _needs(action, last):
    """What must have run before: (kind, stage, micro-batch)."""
    kind, stage, batch = action
    if kind == "F":
        return [("F", stage - 1, batch)] if stage else []
    if kind == "W":
        return [("I", stage, batch)]
    return [("I", stage + 1, batch)] if stage < last else [("F", stage, batch)]
