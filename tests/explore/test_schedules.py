"""Chapter 34's explorer draws the schedules as they run, and says of bytes, bubbles and flights what the formulas say."""

import sys

import pytest

import everybyte as eb
from everybyte import explore
from everybyte.ask import schedules

chart = sys.modules["everybyte.explore.layouts"]
UNPACK = """
import { pure } from "./picture.mjs";
export default ({ spec, batches }) => Object.fromEntries(Object.entries(spec.runs).map(([key, run]) => {
  const { rows, end } = pure.KINDS.chart.unpacked(spec, run, batches[key]);
  return [key, { turns: rows.map((row) => row.turns.map((t) => [t.kind, t.lane, t.batch, t.start, t.end])), most: rows.map((row) => row.most), end }];
}));
"""
RUNS = {f"{i},{n}": (i, n) for i in range(len(chart.SCHEDULES)) for n in chart.BATCHES}


@pytest.fixture(scope="module")
def explorer():
    return explore.pipelines()


def test_the_browser_has_every_turn_of_every_schedule(explorer, node):
    data = {"spec": explorer.picture.spec, "batches": {key: n for key, (_, n) in RUNS.items()}}
    said = node(UNPACK, data, picture=explorer.source)
    assert said.keys() == RUNS.keys()
    for key, run in RUNS.items():
        gpus = chart.timed(*run)
        turns = [
            [[t.action.kind, t.action.stage // 8, t.action.batch, t.start, t.end] for t in sorted(gpu)] for gpu in gpus
        ]
        assert [sorted(gpu) for gpu in said[key]["turns"]] == [sorted(gpu) for gpu in turns], key
        assert said[key]["end"] == max(turn.end for gpu in gpus for turn in gpu)


@pytest.mark.parametrize("schedule", list(chart.SCHEDULES))
def test_the_chart_is_as_long_and_as_full_as_the_formulas_say(explorer, schedule):
    """What it draws is counted from the orders; in flight, bytes and bubble by formula."""
    number, stages = list(chart.SCHEDULES).index(schedule), chart.SCHEDULES[schedule]
    mesh = eb.Mesh(pipeline=8, schedule=schedule, stages=stages)
    for batches in chart.BATCHES:
        setup = eb.Setup(gpus=8, accumulation=batches, mesh=mesh)
        values = explorer.values({**explorer.state, "schedule": number, "batches": chart.BATCHES.index(batches)})
        most, end, waits = explorer.kind.run(values)
        assert most == [eb.formula("pipeline.in_flight").at(None, setup, place=place) for place in range(8)]
        assert waits / (end - waits) == pytest.approx(float(eb.formula("pipeline.bubble").at(None, setup)), rel=1e-12)
        assert end - waits == 3 * batches
        assert most == [sum(schedules.in_flight(mesh, batches, i).values()) for i in range(8)] or stages > 1


def test_the_table_has_every_gpu_and_marks_the_chosen(explorer):
    rows = explorer.table({**explorer.state, "place": 3}).rows
    assert len(rows) == 8 and [row[0].endswith(f"GPU {i}") for i, row in enumerate(rows)] == [True] * 8
    assert [len(row[0]) for row in rows] == [5, 5, 5, 7, 5, 5, 5, 5]
    assert [row[2] for row in rows] == [8, 7, 6, 5, 4, 3, 2, 1]  # 1F1B
    assert rows[3][5] in explorer.describe({**explorer.state, "place": 3})


def test_the_axes_stay_while_a_hand_moves_a_control(explorer, node):
    """From schedule to schedule the chart has one scale of time and one of bytes: what is shorter is drawn shorter."""
    play = """
    import picture, { pure } from "./picture.mjs";
    export default ({ spec, states }) => {
      const axes = {};
      const drawn = { measure: (words) => 7 * words.length, width: 900, narrow: false, texts: [], rects: [],
        end: (name, most) => axes[name] = axes[name] >= most && axes[name] <= 4 * most ? axes[name] : most,
        element: () => ({}), line() {}, spot() {}, boxes() {}, area() {}, part() {}, text: (x, y, words) => drawn.texts.push([x, y, words]),
        rect: (x, y, width, height, more) => more.class === "everybyte-idle" && drawn.rects.push(width), legend: (y) => y + 24 };
      return states.map((state) => {
        [drawn.texts, drawn.rects] = [[], []];
        const height = pure.KINDS.chart.draw(spec, pure.KINDS.chart.compute(spec, state), drawn);
        return { height, axes: { ...axes }, rects: drawn.rects, labels: drawn.texts.filter(([, , words]) => words.startsWith("GPU")) };
      });
    };"""
    gpipe, spread = ({**explorer.state, "schedule": i} for i in (0, 2))
    first, second = node(play, {"spec": explorer.picture.spec, "states": [gpipe, spread]}, picture=explorer.source)
    assert (
        first["axes"] == second["axes"] and first["height"] == second["height"] and first["labels"] == second["labels"]
    )
    assert len(first["rects"]) == 8 and first["rects"][0] / second["rects"][0] == pytest.approx(69 / 58.5, rel=1e-4)
