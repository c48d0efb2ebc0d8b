// ---- what goes on in time: a step's operations, a pipeline's schedule -------------------------------------------

// The time axis of a step, as draw/clock.py has it.
const clock = {
  words: { loss: "loss", optimizer: "step", forward: "forward", backward: "backward" },
  phase(moment) {
    const word = moment.startsWith("after_") ? undefined : Object.keys(clock.words).find((said) => moment.includes(said));
    return word ? clock.words[word] : "";
  },
  // [name, first place, end] of each phase.
  phases(ops) {
    const said = ops.map(([, moment]) => clock.phase(moment));
    let before = said.find((name) => name) ?? "step";
    const runs = [];
    said.forEach((name, i) => {
      if (name && !(before === "backward" && name === "loss")) before = name;
      if (runs.at(-1)?.[0] === before) runs.at(-1)[2] = i + 1;
      else runs.push([before, i, i + 1]);
    });
    return runs;
  },
  // Where each place begins on an axis from 0 to 1, and where the last one ends.
  edges(phases, top) {
    const [length, least] = [phases.at(-1)[2], Math.min(0.1, 0.4 / phases.length)];
    const widths = phases.flatMap(([, first, end]) => Array(end - first).fill(Math.max(1 / length, least / (end - first))));
    for (let at = Math.max(0, top - 6); at < Math.min(length, top + 7); at++) widths[at] = Math.max(widths[at], at === top ? 0.02 : 0.008);
    const ends = [0];
    for (const width of widths) ends.push(ends.at(-1) + width);
    return ends.map((end) => end / ends.at(-1));
  },
};

const timeline = {
  compute(spec, state, more = {}) {
    const v = valuesOf(spec, state, more);
    const { ops, course, marks } = courses.unrolled(spec, v);
    const total = course.map((parts) => sum(Object.values(parts)));
    const top = total.indexOf(total.reduce((a, b) => Math.max(a, b)));
    const last = total.length - 1;
    const at = [Math.floor((2 * state.place * last + spec.places) / (2 * spec.places)), top, ...spec.courses.marks.map((m) => marks[m])][state.look];
    const phases = clock.phases(ops);
    return { ops, course, total, marks, top, last, at, v, phases, edges: clock.edges(phases, top), subject: subjectOf(spec, state) };
  },
  // What lives at the instant, of every part that lives at any: what is drawn has its name in the legend.
  parts: (spec, r) => spec.parts.map(([p, label]) => [label, r.course[r.at][p] ?? 0, p]).filter(([, , p]) => r.course.some((parts) => parts[p])),
  instant(spec, r) {
    const [name, moment, owner] = r.ops[r.at];
    const where = owner ? `, block ${owner} of ${r.v.layers}` : "";
    const what = (name === moment || r.marks[name] === r.at ? name.replaceAll("_", " ") : `${moment}${where}, ${name}`) + (r.at === r.top ? " (the peak)" : "");
    return ` Operation ${grouped(r.at + 1)} of ${grouped(r.last + 1)}, ${what}: ${listed(timeline.parts(spec, r), amount)}; ${amount(r.total[r.at])} in all.`;
  },
  // The chapter that derives what the operation takes, and the function of the reference that runs it; either may be "".
  origin: ({ origins: { rows, of, rest } }, r, at) => rows[of[r.ops[at][3]] ?? rest],
  // The one number, where it is, and how it changed.
  large(r, before) {
    const [now, change] = [r.total[r.top], before ? r.total[r.top] - before.total[before.top] : 0];
    const [name, moment] = r.ops[r.top];
    return [amount(now), ` peak, in ${moment}${name === moment || r.marks[name] === r.top ? "" : `: ${name}`}`, change ? ` ${change > 0 ? "+" : "\u2212"}${amount(Math.abs(change))}` : ""];
  },
  // Where a picture's axes of time and bytes stand, and what touch.js asks of them.
  ends: (width) => [80, width - 12],
  axis: (width) => scale(timeline.ends(width), 0, 1),
  tall: [36, 268],
  handled: "instant of the step; arrow keys move it by one operation",
  range: (spec, r) => ({ "aria-valuemin": 1, "aria-valuemax": r.last + 1, "aria-valuenow": r.at + 1, "aria-valuetext": timeline.instant(spec, r).trim() }),
  reached(r, share) {
    const at = r.edges.findIndex((edge) => edge > share);
    return at < 0 ? r.last : Math.max(0, at - 1);
  },
  hit: (r, width, x) => timeline.reached(r, scale([0, 1], ...timeline.ends(width))(x)),
  moved: (spec, r, at) => ({ look: 0, place: Math.round((at * spec.places) / r.last) }),
  turned(r, key) {
    const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 };
    if (key === "Home" || key === "End") return key === "Home" ? 0 : r.last;
    return key in steps ? Math.min(r.last, Math.max(0, r.at + steps[key])) : undefined;
  },
  tip(spec, r, width, at) {
    const x = timeline.axis(width)((r.edges[at] + r.edges[at + 1]) / 2);
    const [, ...words] = timeline.instant(spec, { ...r, at }).match(/^ (Operation .*?, .*?): (.*); (.*) in all\.$/);
    return { x, lines: [words[0], words[2], ...words[1].split(", "), ...saidOrigin(timeline.origin(spec, r, at))] };
  },
  played: (r, width, share) => ({ x: timeline.axis(width)(share), right: timeline.ends(width)[1], at: timeline.reached(r, share) }),
  peak: (r) => `${amount(r.total[r.top])} in ${r.ops[r.top][1]}`,
  beside: () => ".", // what else is said of the peak
  describe(spec, r) {
    return `${r.subject}, ${batchOf(r.v)}: the peak of ${amount(r.total[r.top])} is in ${r.ops[r.top][1]}`
      + KINDS[spec.kind].beside(r) + timeline.instant(spec, r);
  },
  change(spec, a, b, what) {
    const [before, now] = [a, b].map(timeline.peak);
    if (/^Place \d/.test(what)) return timeline.instant(spec, b).trim(); // it says where
    return `${what}:${before === now ? "" : ` the peak ${before}${ARROW}${now}.`}${timeline.instant(spec, b)}`;
  },
  draw(spec, r, paint) {
    const [along, [top, bottom]] = [timeline.axis(paint.width), timeline.tall];
    const [left, right] = timeline.ends(paint.width);
    const end = paint.end("bytes", Math.max(r.plain ?? 0, r.total[r.top]) * 1.06, "B");
    const [x, y] = [(place) => along(r.edges[place]), scale([bottom, top], 0, end)];
    const middle = (place) => (x(place) + x(place + 1)) / 2;
    rungs(paint, left, right, y, ticks(end));
    timeline.areas(spec, r, paint, x, y);
    if (r.plain) {
      paint.line(left, y(r.plain), right, y(r.plain), LIMIT);
      paint.text(left + 6, y(r.plain) + 11, `none: ${amount(r.plain)}`, {});
    }
    for (const [name, first, end] of r.phases) {
      if (first) paint.line(x(first), top - 8, x(first), bottom, LIMIT);
      if (paint.measure(name) < x(end) - x(first)) paint.text((x(first) + x(end)) / 2, top - 22, name, { anchor: "middle" });
    }
    const arrow = (at, foot, tip) => paint.element("polygon", { points: `${at - 5},${foot} ${at + 5},${foot} ${at},${tip}`, ...MARK });
    paint.line(middle(r.at), top - 4, middle(r.at), y(r.total[r.at]), MARK); // above and below: not over what it points at
    arrow(middle(r.at), bottom + 9, bottom + 1);
    const [px, py] = [middle(r.top), y(r.total[r.top])];
    arrow(px, py - 9, py - 1);
    paint.near(px, paint.narrow ? py - 19 : py - 5, `peak ${amount(r.total[r.top])}, ${r.ops[r.top][1]}`, { gap: 10, end: px > paint.width / 2, bold: true });
    const [all, wide] = [`the ${grouped(r.last + 1)} operations of the step, in order`, "; short phases, and those about the peak, are drawn wider"];
    const said = paint.measure(all + wide) < right - left ? all + wide : all;
    paint.text((left + right) / 2, bottom + 22, said, { anchor: "middle" });
    return paint.legend(bottom + 38, timeline.parts(spec, r).map(([label, value, p]) => [p, `${label} ${amount(value)}`]));
  },
  // No more points than the picture can show: of the operations that share a pixel, the one with the most bytes.
  areas(spec, r, paint, x, y) {
    const shown = [];
    const tenth = (number) => Math.round(number * 10) / 10;
    for (let i = 0; i <= r.last; i++) {
      if (shown.length && Math.floor(x(shown.at(-1))) === Math.floor(x(i))) {
        if (r.total[i] > r.total[shown.at(-1)]) shown[shown.length - 1] = i;
      } else shown.push(i);
    }
    let floor = shown.map(() => 0);
    for (const [p, label] of spec.parts) {
      const roof = shown.map((i, k) => floor[k] + (r.course[i][p] ?? 0));
      if (roof.some((value, k) => value > floor[k])) {
        const edge = (values) => values.flatMap((value, k) => [[k ? shown[k] : 0, value], [shown[k + 1] ?? r.last + 1, value]]);
        const points = [...edge(roof), ...edge(floor).reverse()].map(([i, value]) => `${tenth(x(i))},${tenth(y(value))}`);
        paint.area(points.join(" "), p, label);
      }
      floor = roof;
    }
  },
};

const forgetting = {
  ...timeline,
  compute(spec, state) {
    const r = timeline.compute(spec, state);
    if (r.v.segmented || r.v.selective) {
      const plain = timeline.compute(spec, state, spec.without);
      r.plain = plain.total[plain.top];
    }
    r.left = r.course[r.marks[spec.courses.marks[0]]].activations;
    r.share = FORMULAS[spec.again](r.v) / FORMULAS[spec.done](r.v);
    return r;
  },
  // What checkpointing changes, in words.
  beside(r) {
    const gain = r.plain - r.total[r.top];
    const against = gain ? `, ${amount(Math.abs(gain))} ${gain > 0 ? "below" : "above"} the ${amount(r.plain)} without checkpointing`
      : ", the same as without checkpointing";
    const blocks = Math.min(r.v.segment, r.v.layers);
    const what = r.v.segmented ? `${blocks} block${blocks > 1 ? "s" : ""} at a time` : "attention";
    const again = r.plain ? `backward recomputes ${what}, ${fixed(100 * r.share, 1)} % more products` : "backward recomputes nothing";
    return `${r.plain ? against : ""}. Forward leaves ${amount(r.left)} of activations; ${again}.`;
  },
  change(spec, a, b, what) {
    const [before, now] = [a, b].map((r) => timeline.peak(r) + forgetting.beside(r));
    return `${what}:${before === now ? timeline.instant(spec, b) : ` the peak ${timeline.peak(a)}${ARROW}${now}`}`;
  },
};

// A schedule in time, as explore/layouts.py packs it, and under each GPU's row its bytes meanwhile.
const chart = {
  ...stack,
  // Turns of each GPU, from when to when in forwards of a stage, and how many micro-batches are in flight from when on.
  known: new Map(),
  unpacked(spec, run, batches) {
    if (!chart.known.has(run)) chart.known.set(run, chart.unpack(spec, run, batches));
    return chart.known.get(run);
  },
  unpack(spec, { back, gpus }, batches) {
    const rows = gpus.map((said) => {
      const [next, turns, flying] = [{}, [], [[0, 0]]];
      let [at, now] = [0, 0];
      for (const [, wait, letter] of said.matchAll(/(\d*)([a-z])/gi)) {
        const kind = letter.toUpperCase();
        const i = next[letter] = (next[letter] ?? -1) + 1;
        const start = at + Number(wait);
        at = start + spec.kinds[kind][2];
        turns.push({ kind, lane: Number(letter !== kind), batch: back && kind !== "F" ? batches - 1 - i : i, start, end: at });
        if (kind === "F") flying.push([start, now += 1]);
        else if (kind !== "I") flying.push([at, now -= 1]);
      }
      return { turns, flying, most: Math.max(...flying.map(([, count]) => count)) };
    });
    return { rows, end: Math.max(...rows.map(({ turns }) => turns.at(-1).end)) };
  },
  compute(spec, state) {
    const r = stack.compute(spec, state);
    const { schedule_no, accumulation, pipeline_stages: stages } = r.now.v;
    const run = spec.runs[`${schedule_no},${accumulation}`];
    if (!run) throw new Error(`schedule: ${schedule_no}, ${accumulation} is not stored`);
    const { rows, end } = chart.unpacked(spec, run, accumulation);
    r.rows.forEach((row, i) => Object.assign(row, rows[i]));
    return { ...r, stages, end, waits: end - sum(rows[0].turns.map((turn) => turn.end - turn.start)) };
  },
  idle: (r) => `${fixed((100 * r.waits) / r.end, 1)} %`,
  flying: (r) => ` At most ${r.now.most} micro-batches are in flight${r.stages > 1 ? ", counted once a stage" : ""}.`,
  lasts: (r) => ` The step lasts ${r.end / r.stages} forwards of a GPU's blocks; each GPU is idle for ${r.waits / r.stages} of them (${chart.idle(r)}).`,
  describe: (spec, r) => stack.describe(spec, r) + chart.flying(r) + chart.lasts(r),
  change: (spec, a, b, what) => stack.change(spec, a, b, what) + chart.flying(b) + (chart.lasts(a) === chart.lasts(b) ? "" : chart.lasts(b)),
  draw(spec, r, paint) {
    const [bar, under, gap, top] = [26, 18, 7, 8];
    const [left, right] = [
      16 + paint.measure(paint.narrow ? "GPU 0" : "stages 0, 00", paint.narrow),
      paint.width - 14 - Math.max(paint.measure("100.00 GiB", true), paint.narrow ? 0 : paint.measure("100 in flight", true)),
    ];
    // In forwards of a GPU's blocks: on this axis a schedule of several stages is as long as one of one.
    const long = paint.end("time", r.end / r.stages);
    const x = (at) => Math.round(100 * (left + (at / r.stages / long) * (right - left))) / 100;
    const high = paint.end("bytes", Math.max(...r.rows.map((row) => row.total)) || 1);
    r.rows.forEach((row, i) => {
      const y = top + i * (bar + under + gap);
      const more = { bold: row.current, on: row.current };
      if (row.current) paint.rect(1, y - 4, paint.width - 2, bar + under + 8, CURRENT);
      paint.text(left - 8, paint.narrow ? y + bar / 2 : y + 11, row.label, { anchor: "end", ...more });
      const stages = r.stages > 1 ? `stages ${i}, ${i + r.rows.length}` : `stage ${i}`;
      if (!paint.narrow) paint.text(left - 8, y + 31, stages, { anchor: "end", on: row.current });
      paint.rect(x(0), y, x(r.end) - x(0), bar, { class: "everybyte-idle" });
      chart.turns(spec, r, paint, row, x, y, bar / r.stages, (lane) => `${row.label}, stage ${i + lane * r.rows.length}`);
      chart.bytes(spec, r, paint, row, x, y + bar + 1, under, high);
      if (!paint.narrow) paint.text(right + 6, y + 11, `${row.most} in flight`, { on: row.current });
      paint.text(right + 6, y + 31, amount(row.total), more);
      paint.spot([0, y, paint.width, y + bar + under + gap], stack.lines(spec, r, row), { [spec.bars]: i });
    });
    const bottom = top + r.rows.length * (bar + under + gap);
    for (const at of ticks(long, "")) paint.text(left + (at / long) * (right - left), bottom + 6, count(at), { anchor: "middle" });
    if (paint.narrow) paint.text(8, bottom + 24, "time, in a GPU's forwards; under each its bytes", { room: paint.width - 8 });
    else paint.text(left, bottom + 24, "time, in forwards of a GPU's blocks; under each GPU its bytes", {});
    const seen = new Set(r.rows.flatMap((row) => row.turns.map((turn) => turn.kind))); // as they first run: a stored state sorts keys
    const kinds = [...seen].map((kind) => spec.kinds[kind].slice(0, 2));
    const line = paint.legend(bottom + 40, [...kinds, ["", `idle: ${chart.idle(r)}`]]);
    return paint.legend(line, spec.parts.map(([look, label], j) => [look, `${r.now.label}, ${label}: ${amount(r.now.parts[j])}`]));
  },
  // A row's boxes, with the micro-batch in each that has room for it.
  turns(spec, r, paint, row, x, y, lane, named) {
    const [unit, small] = [x(1) - x(0), 11 / SIZE];
    const digits = [1, 2, 3].map((n) => small * paint.measure("0".repeat(n))); // how wide numbers of so many are
    const boxes = {};
    for (const turn of row.turns) {
      const from = x(turn.start);
      (boxes[turn.kind + turn.lane] ??= []).push(`M${from} ${y + turn.lane * lane}H${x(turn.end)}v${lane}H${from}z`);
    }
    for (const [which, paths] of Object.entries(boxes)) {
      const [look, label] = spec.kinds[which[0]];
      paint.boxes(paths.join(""), look, `${named(Number(which[1]))}: ${label}`, unit < 4);
    }
    for (const turn of unit < 4 ? [] : row.turns) {
      if (digits[String(turn.batch).length - 1] > x(turn.end) - x(turn.start)) continue;
      const look = spec.looks[spec.kinds[turn.kind][0]];
      const place = { x: (x(turn.start) + x(turn.end)) / 2, y: y + (turn.lane + 0.5) * lane + 0.5, "text-anchor": "middle", "dominant-baseline": "central" };
      const casing = look.hatch ? `; stroke: ${look.color}; stroke-width: 4px; paint-order: stroke` : "";
      paint.element("text", { ...place, style: `font-size: 11px; fill: ${look.ink}${casing}` }).textContent = String(turn.batch);
    }
  },
  // Under a row what stands on the GPU all the time, and above it what micro-batches in flight keep.
  bytes(spec, r, paint, row, x, top, under, high) {
    const floor = top + under;
    const height = (bytes) => (bytes / high) * under;
    const [stands, kept] = row.parts;
    const title = (j, after = "") => `${row.label}, ${spec.parts[j][1]}: ${amount(row.parts[j])}${after}`;
    if (stands) paint.part(x(0), floor - height(stands), x(r.end) - x(0), height(stands), spec.parts[0][0], title(0));
    const base = floor - height(stands);
    const levels = Array.from({ length: row.most + 1 }, (_, n) => (base - height((kept * n) / row.most)).toFixed(2));
    const roof = row.flying.map(([at, n], k) => `${x(at)},${levels[n]} ${x(row.flying[k + 1]?.[0] ?? r.end)},${levels[n]}`);
    paint.area(`${x(0)},${base} ${roof.join(" ")} ${x(r.end)},${base}`, spec.parts[1][0], title(1, " at most"));
    paint.line(x(0), floor, x(r.end), floor, GRID);
  },
};

const KINDS = { stack, peak, lines, fitting, ranges, block, timeline, forgetting, map, front, chart };

function describe(spec, state) {
  const kind = KINDS[spec.kind];
  return kind.describe(spec, kind.compute(spec, state));
}

export const pure = { KINDS, amount, describe, nearest, unseen };
