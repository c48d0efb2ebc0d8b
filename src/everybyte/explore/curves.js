// ---- curves, what fits of what is served, layouts ---------------------------------------------------------------

const DASHES = ["", "8 5", "2 4", "10 4 2 4"]; // of curves, in their order

const lines = {
  compute(spec, state) {
    const at = valuesOf(spec, state)[spec.x];
    const run = (q, value) => {
      const y = FORMULAS[q](valuesOf(spec, state, { [spec.x]: value }));
      if (!Number.isFinite(y)) throw new Error(`${q}: ${y} at ${spec.label} ${value}`);
      return y;
    };
    const xs = spec.values ?? Array.from({ length: 16 }, (_, i) => (i + 1) * Math.max(1, Math.floor(at / 8)));
    const curves = spec.curves.map(([part, label, q]) => ({ part, label, ys: xs.map((value) => run(q, value)), now: run(q, at) }));
    return { xs, curves, at, subject: subjectOf(spec, state) };
  },
  describe(spec, r) {
    const said = r.curves.map((c) => `${c.label} ${amount(c.now, spec.unit)}`).join(", ");
    return `${r.subject ? r.subject + ": " : ""}at ${spec.label} ${grouped(r.at)}, ${said}.`;
  },
  change(spec, a, b, what) {
    const said = b.curves.map((c, i) => {
      const before = a.curves[i].now;
      const times = !(before > 0) || before === c.now ? "" : c.now > 0 && c.now < before / 50
        ? ` (\u00f7 ${count(before / c.now)})` : ` (\u00d7 ${fixed(c.now / before, 2)})`;
      return before === c.now ? `${c.label} stays ${amount(c.now, spec.unit)}`
        : `${c.label} ${amount(before, spec.unit)}${ARROW}${amount(c.now, spec.unit)}${times}`;
    });
    return `${what}: ${said.join("; ")}.`;
  },
  draw(spec, { xs, ...r }, paint, from = 0) {
    const longest = Math.max(...r.curves.map((c) => paint.measure(c.label)));
    const beside = longest < paint.width * 0.3; // a curve's name at its end, or all of them in a legend
    const [top, bottom, right] = [from + 12, from + 270, paint.width - (beside ? longest + 14 : 34)];
    const { low, high, marks } = lines.amounts(spec, r, paint);
    const left = 14 + Math.max(...marks.map((value) => paint.measure(tick(value, spec.unit))));
    const x = scale([left, right], xs[0], xs.at(-1), spec.log);
    const up = scale([bottom, top], low, high, spec.log);
    const y = (value) => (spec.log && value <= 0 ? bottom : up(value));
    rungs(paint, left, right, y, marks, spec.unit);
    for (const across of places(xs, spec.log, paint.narrow ? 2 : 4)) paint.text(x(across), bottom + 14, grouped(across), { anchor: "middle" });
    paint.text((left + right) / 2, bottom + 32, spec.label, { anchor: "middle" });
    const within = r.at >= xs[0] && r.at <= xs.at(-1);
    if (within) paint.line(x(r.at), top, x(r.at), bottom, LIMIT);
    const ends = r.curves.map((c, i) => ({ c, dash: DASHES[i % 4], y: y(c.ys.at(-1)) })).sort((a, b) => a.y - b.y);
    ends.forEach((e, k) => { if (k) e.y = Math.max(e.y, ends[k - 1].y + 16); });
    for (const { c, dash, y: end } of ends) {
      const look = spec.looks[c.part];
      paint.curve(xs.map((value, j) => [x(value), y(c.ys[j])]), look, dash);
      if (within) paint.element("circle", { cx: x(r.at), cy: y(c.now), r: 5, fill: look.color, ...MARK });
      if (beside) paint.text(right + 8, end, c.label, {});
    }
    xs.forEach((value, j) => {
      const [before, after] = [x(xs[j - 1] ?? value), x(xs[j + 1] ?? value)];
      const words = r.curves.map((c) => `${c.label}: ${amount(c.ys[j], spec.unit)}`);
      paint.spot([(before + x(value)) / 2 - !j, top, (x(value) + after) / 2 + 1, bottom], [`${spec.label} ${grouped(value)}`, ...words], standing(spec, { [spec.x]: value }));
    });
    return beside ? bottom + 46 : paint.legend(bottom + 48, r.curves.map((c, i) => [c.part, c.label, DASHES[i % 4]]));
  },
  // The ends of the upright axis and what it names. A logarithmic one runs between round numbers: 1 and 32 of KiB, MiB and so on, or
  // powers of ten.
  amounts(spec, r, paint) {
    const all = r.curves.flatMap((c) => [...c.ys, c.now]).filter((y) => !spec.log || y > 0);
    if (!spec.log) {
      const high = paint.end("amounts", Math.max(...all) || 1, spec.unit);
      return { low: 0, high, marks: ticks(high, spec.unit) };
    }
    const base = spec.unit === "B" ? 32 : 10;
    const power = (value, way) => way(Number((Math.log(value) / Math.log(base)).toFixed(9)));
    const [low, high] = paint.span("amounts", power(Math.min(...all), Math.floor), power(Math.max(...all), Math.ceil)).map((n) => base ** n);
    const steps = Math.max(1, Math.round(Math.log(high / low) / Math.log(base)));
    return { low, high, marks: Array.from({ length: steps + 1 }, (_, i) => low * base ** i) };
  },
};

// What sequences take where a model generates, and for each context the most that fit: explore/peaks.py's.
const fitting = {
  ...stack,
  found: new Map(), // the curves of a model on a GPU: no other control moves them
  most(spec, v, way, context) {
    const base = { ...v, ...spec.ways[way], context };
    const [d, c] = [base.decode, context];
    const size = (n) => sum(courses.peak(spec, { ...base, B: n, C: c, S: d ? 1 : c - 1, T: c - 1 + d, T_0: (c - 1) * d }).parts);
    return largest(size, v.capacity, spec.unlimited);
  },
  compute(spec, state) {
    const r = stack.compute(spec, state);
    const { v } = r.now;
    for (const row of r.rows) row.most = fitting.most(spec, v, row.label, v.context);
    const key = `${state.model},${state.gpu}`;
    if (!fitting.found.has(key)) {
      fitting.found.set(key, spec.curves.map(([, label]) => spec.contexts.map((context) => fitting.most(spec, v, label, context))));
    }
    const curves = spec.curves.map(([part, label], i) => ({ part, label, ys: fitting.found.get(key)[i], now: r.rows.find((row) => row.label === label).most }));
    return { ...r, context: v.context, lines: { xs: spec.contexts, curves, at: v.context } };
  },
  fits(r) {
    const rows = r.rows.map((row) => `${row.label} ${grouped(row.most)}`).join(", ");
    return ` Sequences of ${grouped(r.context)} tokens that fit at most: ${rows}.`;
  },
  describe(spec, r) {
    return stack.describe(spec, r) + (r.now.where ? ` The largest moment is in ${r.now.where}.` : "") + fitting.fits(r);
  },
  change(spec, a, b, what) {
    const same = a.context === b.context && a.rows.every((row, i) => row.most === b.rows[i].most);
    return stack.change(spec, a, b, what) + (same ? "" : fitting.fits(b));
  },
  draw(spec, r, paint) {
    const rows = r.rows.map((row) => ({ ...row, label: `${row.label}: at most ${grouped(row.most)}` }));
    const bottom = stack.draw(spec, { ...r, rows, now: rows.find((row) => row.current) }, paint) + 12;
    if (!r.lines.curves.some((c) => c.ys.some((y) => y))) {
      paint.text(8, bottom, "Not one sequence fits, at any context.", {});
      return bottom + 24;
    }
    const axes = { x: "context", label: "context (tokens): the most sequences that fit", unit: "", log: true };
    return lines.draw({ ...spec, ...axes }, r.lines, paint, bottom);
  },
};

// Layouts that were priced beforehand: explore/layouts.py's.
const front = {
  compute(spec, state) {
    const v = valuesOf(spec, state);
    const key = spec.by.map((name) => v[name]).join(",");
    const run = spec.runs[key];
    if (!run) throw new Error(`run: ${key} is not stored`);
    const points = run.points.map(([name, seconds, bytes, reserved]) => ({ name, seconds, bytes, reserved, runs: reserved !== null }));
    const best = points.filter((p) => !points.some((o) => o !== p && o.seconds <= p.seconds && o.bytes <= p.bytes && (o.seconds < p.seconds || o.bytes < p.bytes)));
    return { ...run, points, best: best.sort((a, b) => a.seconds - b.seconds), first: points.find((p) => p.runs), subject: subjectOf(spec, state) };
  },
  said: (r) => r.first ? `first of those that run, by computed time: ${r.first.name}, ${fixed(r.first.seconds, 2)} s a step, ${front.bytes(r)}; ${r.binding}`
    : `none of ${r.tried} layouts runs; ${amount(r.usable)} are usable`,
  bytes: (r) => `${amount(r.first.bytes)} live of ${amount(r.usable)} usable, ${amount(r.first.reserved)} reserved`,
  describe: (spec, r) => `${r.subject}: ${front.said(r)}.`,
  change: (spec, a, b, what) => `${what}: ${front.said(b)}.`,
  draw(spec, r, paint) {
    const [top, bottom, right] = [14, 300, paint.width - 34]; // half of the last label stands beyond
    const lines = 5; // of layouts by name, whether there are as many or not: what is below stays
    const end = bottom + 54 + 18 * lines + 4;
    if (!r.points.length) {
      paint.text(8, top + 12, "Not one layout runs.", {});
      return end + 24;
    }
    const high = paint.end("bytes", 1.05 * Math.max(r.usable, ...r.points.map((p) => p.bytes)), "B");
    const [low, long] = [Math.min(...r.points.map((p) => p.seconds)) * 0.96, Math.max(...r.points.map((p) => p.seconds)) * 1.04];
    const left = 14 + Math.max(...ticks(high).map((value) => paint.measure(tick(value))));
    const [x, y] = [scale([left, right], low, long), scale([bottom, top], 0, high)];
    rungs(paint, left, right, y, ticks(high));
    const every = ticks(long - low, "s").slice(1)[paint.narrow ? 1 : 0] ?? long - low;
    for (let i = Math.ceil(low / every); i * every <= long; i++) paint.text(x(i * every), bottom + 14, tick(i * every, "s"), { anchor: "middle" });
    paint.text((left + right) / 2, bottom + 32, "a step, as computed", { anchor: "middle" });
    paint.line(left, y(r.usable), right, y(r.usable), LIMIT);
    paint.near(right, y(r.usable) - 9, `usable: ${amount(r.usable)}`, { end: true });
    paint.curve(r.best.map((p) => [x(p.seconds), y(p.bytes)]), spec.looks.activations, "");
    for (const p of r.points) {
      const [cx, cy] = [x(p.seconds), y(p.bytes)];
      const words = [p.name, `${fixed(p.seconds, 2)} s a step`, `${amount(p.bytes)} live, ${p.runs ? `${amount(p.reserved)} reserved` : "does not run"}`];
      paint.spot([cx - 8, cy - 8, cx + 8, cy + 8], words);
      if (p.runs) paint.element("circle", { cx, cy, r: 5, fill: spec.looks.activations.color, ...MARK });
      else paint.element("rect", { x: cx - 4, y: cy - 4, width: 8, height: 8, fill: spec.looks.loss.color, ...MARK });
    }
    r.points.filter((p) => p.runs).slice(0, lines).forEach((p, i) => {
      paint.text(left, bottom + 54 + 18 * i, `${i + 1}. ${p.name}: ${fixed(p.seconds, 2)} s, ${amount(p.bytes)} live, ${amount(p.reserved)} reserved`, { bold: i === 0, room: right - left });
    });
    return paint.legend(end, [["activations", "runs"], ...(r.points.some((p) => !p.runs) ? [["loss", "does not run"]] : [])]);
  },
};
