// The picture of an explorer: it evaluates the registry's formulas, draws an SVG and says in words what changed.
// Python puts the formulas, printed as JavaScript, into the object below; nothing is evaluated from text at run time.
const FORMULAS = {/* formulas */};

const UNITS = { TiB: 2 ** 40, GiB: 2 ** 30, MiB: 2 ** 20, KiB: 2 ** 10 };
const ARROW = " \u2192 ";

// ---- numbers as text, as units.py writes them -------------------------------------------------------------------

function grouped(text) {
  const [whole, ...rest] = text.split(".");
  return [whole.replace(/\B(?=(\d{3})+$)/g, ","), ...rest].join(".");
}

// As Python rounds: an exact half goes to the even digit.
function fixed(x, digits) {
  const scaled = x * 10 ** digits;
  const floor = Math.floor(scaled);
  if (scaled - floor === 0.5 && Number.isInteger(x * 2 ** (digits + 1))) {
    return ((floor % 2 === 0 ? floor : floor + 1) / 10 ** digits).toFixed(digits);
  }
  return x.toFixed(digits);
}

function count(x) {
  for (const [size, suffix] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(x) >= size) return `${fixed(x / size, 1)} ${suffix}`;
  }
  return String(Number(x.toPrecision(6)));
}

function amount(x, unit) {
  if (unit !== "B") return `${count(x)} ${unit}`.trim();
  const name = Object.keys(UNITS).find((u) => Math.abs(x) >= UNITS[u]);
  return name ? `${fixed(x / UNITS[name], 2)} ${name}` : Number.isInteger(x) ? `${x} B` : `${fixed(x, 2)} B`;
}

// A part of a sum, and the sum: bytes in the unit that fits; of things the short count, and every digit of the sum.
const part = (x, unit) => (unit === "B" ? amount(x, unit) : count(x));
const whole = (x, unit) => (unit === "B" ? amount(x, unit) : `${grouped(String(x))} ${unit}`);

// ---- state to numbers -------------------------------------------------------------------------------------------

function valuesOf(spec, state, more = {}) {
  const v = { ...spec.base };
  for (const c of spec.controls) {
    if (c.options) Object.assign(v, c.options[state[c.name]].values);
    else v[c.name] = state[c.name];
  }
  Object.assign(v, more);
  for (const [name, formula] of spec.derived) v[name] = FORMULAS[formula](v);
  return v;
}

function labelOf(control, value) {
  return control.options ? control.options[value].label : grouped(String(Number(value.toPrecision(12))));
}

// A newly chosen option moves the controls that it sets.
function followed(spec, state, before) {
  const out = { ...state };
  for (const c of spec.controls) {
    if (before && c.options && before[c.name] !== state[c.name]) Object.assign(out, c.options[state[c.name]].sets);
  }
  return out;
}

// A control marked `divides` moves on, the way it was moving, to the next divisor of the other's value.
function snapped(spec, state, before) {
  const out = { ...state };
  for (const c of spec.controls.filter((c) => c.divides)) {
    const whole = out[c.divides];
    const step = before && out[c.name] < before[c.name] ? -1 : 1;
    let value = Math.min(out[c.name], whole);
    while (whole % value) value += step;
    out[c.name] = value;
  }
  return out;
}

// What the picture is of. An option in parentheses is not said; a choice that stands instead of another silences it.
function subjectOf(spec, state) {
  const said = spec.controls.filter((c) => spec.subject.includes(c.name))
    .map((c) => [c, c.options ? labelOf(c, state[c.name]) : `${c.label} ${labelOf(c, state[c.name])}`])
    .filter(([, label]) => !label.startsWith("("));
  const instead = said.map(([c]) => c.instead_of).filter((name) => name);
  const words = said.filter(([c]) => !instead.includes(c.name)).map(([c, label]) => label + apart(spec, c, state));
  const v = spec.also.length ? valuesOf(spec, state) : {};
  return [...words, ...spec.also.map((name) => `${name} ${grouped(String(v[name]))}`)].join(", ");
}

// Which of the controls that a choice sets have moved since.
function apart(spec, control, state) {
  const sets = control.options ? control.options[state[control.name]].sets : {};
  const moved = spec.controls.filter((c) => c.name in sets && state[c.name] !== sets[c.name]);
  return moved.length ? ` with ${moved.map((c) => `${c.label} ${labelOf(c, state[c.name])}`).join(" and ")}` : "";
}

function whatChanged(spec, before, state, preset) {
  if (preset) return preset;
  const moved = spec.controls.filter((c) => before[c.name] !== state[c.name]);
  const set = moved.filter((c) => c.options).flatMap((c) => Object.keys(c.options[state[c.name]].sets));
  const said = moved.filter((c) => !set.includes(c.name));
  const words = said.map((c) => `${c.label} ${labelOf(c, before[c.name])}${ARROW}${labelOf(c, state[c.name])}`).join(", ");
  return words.slice(0, 1).toUpperCase() + words.slice(1);
}

const sum = (list) => list.reduce((a, b) => a + b, 0);

// ---- the kinds of picture: each has compute, describe, change, draw ---------------------------------------------

const stack = {
  compute(spec, state) {
    const control = spec.controls.find((c) => c.name === spec.bars);
    const rows = (control ? control.options : [{ label: "", values: {} }]).map((option, i) => {
      const v = valuesOf(spec, state, control ? option.values : {});
      const parts = spec.parts.map((p) => FORMULAS[p.formula](v));
      return { label: option.label, parts, total: sum(parts), current: !control || i === state[spec.bars], v };
    });
    const now = rows.find((r) => r.current);
    for (const r of rows) {
      for (const [i, x] of r.parts.entries()) {
        if (!(x >= 0)) throw new Error(`${spec.parts[i].formula}: ${x} is not an amount`);
      }
    }
    return { rows, now, capacity: now.v.capacity, subject: subjectOf(spec, state) };
  },
  capacity(spec, r) {
    if (r.capacity === undefined) return "";
    const free = r.capacity - r.now.total;
    const whole = `the ${amount(r.capacity, "B")} of ${r.now.v.capacity_label}`;
    if (free < 0) return ` ${amount(-free, "B")} more than ${whole}: it does not fit.`;
    return ` ${fixed((100 * r.now.total) / r.capacity, 1)} % of ${whole}; ${amount(free, "B")} are left.`;
  },
  describe(spec, r) {
    const said = spec.parts.map((p, i) => [p.label, r.now.parts[i]]).filter(([, x]) => x);
    const parts = said.map(([label, x]) => `${label} ${part(x, spec.unit)}`).join(", ");
    return `${r.subject}: ${parts}; ${whole(r.now.total, spec.unit)} in all.${stack.capacity(spec, r)}`;
  },
  change(spec, a, b, what) {
    const moved = spec.parts
      .map((p, i) => [p.label, a.now.parts[i], b.now.parts[i]])
      .filter(([, x, y]) => x !== y)
      .map(([label, x, y]) => `${label} ${part(x, spec.unit)}${ARROW}${part(y, spec.unit)}`);
    const total = a.now.total === b.now.total ? `total stays ${whole(b.now.total, spec.unit)}`
      : `total ${part(a.now.total, spec.unit)}${ARROW}${whole(b.now.total, spec.unit)}`;
    return `${what}: ${[...moved, total].join("; ")}.${stack.capacity(spec, b)}`;
  },
  draw(spec, r, paint) {
    const multi = r.rows.length > 1;
    const left = multi ? 14 + 7.2 * Math.max(...r.rows.map((x) => x.label.length)) : 8;
    const [bar, gap, top] = multi ? [28, 12, 26] : [56, 12, 26];
    const longest = Math.max(...r.rows.map((x) => x.total)) || 1;
    const near = r.capacity !== undefined && r.capacity <= 4 * longest;
    const limit = Math.max(longest, near ? r.capacity * 1.02 : 0);
    const x = (value) => left + (value / limit) * (WIDTH - left - 140);
    const bottom = top + r.rows.length * (bar + gap);
    if (multi) paint.rect(1, top + r.rows.indexOf(r.now) * (bar + gap) - 5, WIDTH - 2, bar + 10, { class: "everybyte-current" });
    if (near) paint.line(x(r.capacity), top - 8, x(r.capacity), bottom - gap + 8, { class: "everybyte-limit" });
    r.rows.forEach((row, i) => {
      const y = top + i * (bar + gap);
      if (multi) paint.text(left - 8, y + bar / 2, row.label, { anchor: "end", bold: row.current });
      let at = 0;
      row.parts.forEach((value, j) => {
        if (!value) return;
        const text = part(value, spec.unit);
        const width = x(at + value) - x(at);
        paint.part(x(at), y, width, bar, spec.parts[j].part, `${spec.parts[j].label}: ${text}`);
        if (width > 7 * text.length + 8) paint.pill(x(at) + width / 2, y + bar / 2, text, spec.looks[spec.parts[j].part]);
        at += value;
      });
      const over = r.capacity !== undefined && at > r.capacity ? ", too much" : "";
      paint.text(x(at) + 6, y + bar / 2, part(at, spec.unit) + over, { bold: row.current });
    });
    if (r.capacity !== undefined) {
      const beyond = near ? "" : ", beyond this scale" + ARROW;
      const words = `${r.now.v.capacity_label}: ${amount(r.capacity, "B")}${beyond}`;
      const end = !near || x(r.capacity) > WIDTH / 2;
      paint.text(near ? x(r.capacity) : WIDTH - 4, 9, words, { anchor: end ? "end" : "start" });
    }
    return paint.legend(bottom + 6, spec.parts.map((p, j) => [p.part, p.label, r.now.parts[j]]).filter(([, , v]) => v)
      .map(([look, label, v]) => [look, `${label} ${part(v, spec.unit)}` + (spec.shares ? ` (${fixed((100 * v) / r.now.total, 1)} %)` : "")]));
  },
};

const lines = {
  compute(spec, state) {
    const base = valuesOf(spec, state);
    const at = base[spec.x.name];
    const run = (q, value) => {
      const y = FORMULAS[q](valuesOf(spec, state, { [spec.x.name]: value }));
      if (!Number.isFinite(y)) throw new Error(`${q}: ${y} at ${spec.x.label} ${value}`);
      return y;
    };
    const curves = spec.curves.map((c) => ({ ...c, ys: spec.x.values.map((value) => run(c.formula, value)), now: run(c.formula, at) }));
    return { curves, at, capacity: base.capacity, subject: subjectOf(spec, state), label: base.capacity_label };
  },
  describe(spec, r) {
    const said = r.curves.map((c) => `${c.label} ${amount(c.now, spec.unit)}`).join(", ");
    return `${r.subject ? r.subject + ": " : ""}at ${spec.x.label} ${grouped(String(r.at))}, ${said}.`;
  },
  change(spec, a, b, what) {
    const said = b.curves.map((c, i) => {
      const before = a.curves[i].now;
      const times = before > 0 && before !== c.now ? ` (\u00d7 ${fixed(c.now / before, 2)})` : "";
      return before === c.now ? `${c.label} stays ${amount(c.now, spec.unit)}`
        : `${c.label} ${amount(before, spec.unit)}${ARROW}${amount(c.now, spec.unit)}${times}`;
    });
    return `${what}: ${said.join("; ")}.`;
  },
  draw(spec, r, paint) {
    const [left, top, bottom, right] = [86, 12, 270, WIDTH - 150];
    const xs = spec.x.values;
    const log = spec.log;
    const all = r.curves.flatMap((c) => [...c.ys, c.now]).filter((y) => !log || y > 0);
    // A logarithmic axis runs between round numbers: bytes, KiB, MiB, or powers of ten.
    const base = spec.unit === "B" ? 1024 : 10;
    const round = (value, way) => base ** way(Number((Math.log(value) / Math.log(base)).toFixed(9)));
    const high = log ? round(Math.max(...all), Math.ceil) : Math.max(...all) || 1;
    const low = log ? round(Math.min(...all), Math.floor) : 0;
    const steps = log ? Math.max(1, Math.round(Math.log(high / low) / Math.log(base))) : 4;
    const share = (value, from, to) => log ? Math.log(value / from) / Math.log(to / from || 1) : (value - from) / (to - from || 1);
    const x = (value) => left + share(value, xs[0], xs[xs.length - 1]) * (right - left);
    const y = (value) => bottom - (log && value <= 0 ? 0 : share(value, low, high)) * (bottom - top);
    for (let i = 0; i <= steps; i += 1) {
      const value = log ? low * base ** i : (high * i) / steps;
      paint.line(left, y(value), right, y(value), { class: "everybyte-grid" });
      paint.text(left - 6, y(value), amount(value, spec.unit), { anchor: "end" });
    }
    for (const k of [0, 0.25, 0.5, 0.75, 1]) {
      const across = log ? xs[0] * (xs[xs.length - 1] / xs[0]) ** k : xs[0] + (xs[xs.length - 1] - xs[0]) * k;
      paint.text(x(across), bottom + 14, grouped(String(Math.round(across))), { anchor: "middle" });
    }
    paint.text((left + right) / 2, bottom + 32, spec.x.label, { anchor: "middle" });
    if (r.at >= xs[0] && r.at <= xs[xs.length - 1]) paint.line(x(r.at), top, x(r.at), bottom, { class: "everybyte-limit" });
    const ends = r.curves.map((c, i) => ({ i, y: y(c.ys[c.ys.length - 1]) })).sort((a, b) => a.y - b.y);
    ends.forEach((e, k) => { if (k) e.y = Math.max(e.y, ends[k - 1].y + 15); });
    for (const { i, y: end } of ends) {
      const c = r.curves[i];
      const look = spec.looks[c.part];
      const points = xs.map((value, j) => `${x(value)},${y(c.ys[j])}`).join(" ");
      paint.element("polyline", { points, fill: "none", stroke: look.color, "stroke-width": 3, "stroke-dasharray": c.dash || "none" });
      paint.element("circle", { cx: x(r.at), cy: y(c.now), r: 5, fill: look.color, class: "everybyte-mark" });
      paint.text(right + 6, end, c.label, {});
    }
    return bottom + 44;
  },
};

const ranges = {
  compute(spec, state) {
    const v = valuesOf(spec, state);
    const bounds = (label, values) => {
      const out = { label };
      for (const [name, q] of Object.entries(spec.bounds)) out[name] = FORMULAS[q](values);
      return out;
    };
    const rows = spec.rows.map((row) => bounds(row.label, { ...v, ...row.values }));
    const now = bounds(spec.own, v);
    rows.unshift(now);
    for (const row of rows) {
      if (!(row.smallest > 0 && row.smallest <= row.normal && row.normal <= row.largest)) {
        throw new Error(`${row.label}: ${row.smallest}, ${row.normal}, ${row.largest} is not a range`);
      }
      Object.assign(row, round(2 ** v[spec.mark], row));
    }
    return { rows, now, at: v[spec.mark], subject: subjectOf(spec, state) };
  },
  describe(spec, r) {
    const kept = r.rows.slice(1).map((row) => `${row.label} ${row.fate}`).join(", ");
    return `${spec.own} (${r.subject}) spans ${power(r.now.smallest)} to ${plain(r.now.largest)}, steps of ${power(r.now.epsilon)} above 1: `
      + `a ${spec.thing} of 2^${short(r.at)} ${r.now.verdict}. The others: ${kept}.`;
  },
  change(spec, a, b, what) {
    const moved = a.now.smallest === b.now.smallest && a.now.largest === b.now.largest ? ""
      : `smallest ${power(a.now.smallest)}${ARROW}${power(b.now.smallest)}, largest ${plain(a.now.largest)}${ARROW}${plain(b.now.largest)}; `;
    const kept = b.rows.slice(1).map((row) => `${row.label} ${row.fate}`).join(", ");
    return `${what}: ${moved}a ${spec.thing} of 2^${short(b.at)} ${b.now.verdict}. The others: ${kept}.`;
  },
  draw(spec, r, paint) {
    const [left, top, bar, gap] = [96, 30, 24, 14];
    const logs = r.rows.flatMap((row) => [Math.log2(row.smallest), Math.log2(row.largest)]).concat(r.at);
    const low = Math.min(...logs);
    const span = Math.max(...logs) - low || 1;
    const x = (exponent) => left + 48 + ((exponent - low) / span) * (WIDTH - left - 124);
    const bottom = top + r.rows.length * (bar + gap);
    const words = [];
    paint.rect(1, top - 5, WIDTH - 2, bar + 10, { class: "everybyte-current" });
    r.rows.forEach((row, i) => {
      const y = top + i * (bar + gap);
      const [a, b, c] = [row.smallest, row.normal, row.largest].map((value) => x(Math.log2(value)));
      if (b > a) paint.part(a, y, b - a, bar, "casts", `${row.label}, subnormal: fewer bits`);
      paint.part(b, y, Math.max(c - b, 1), bar, "parameters", `${row.label}, normal`);
      words.push([left - 8, y, row.label, { anchor: "end", bold: !i }], [a - 4, y, power(row.smallest), { anchor: "end" }], [c + 4, y, plain(row.largest), {}]);
    });
    paint.line(x(r.at), top - 10, x(r.at), bottom - gap + 6, { class: "everybyte-limit" });
    for (const [at, y, text, more] of words) paint.text(at, y + bar / 2, text, more);
    paint.text(x(r.at), 10, `${spec.thing} 2^${short(r.at)}: ${r.now.fate}`, { anchor: x(r.at) > WIDTH / 2 ? "end" : "start", bold: true });
    return paint.legend(bottom + 4, [["casts", "subnormal: fewer bits"], ["parameters", "normal"]]);
  },
};

const block = {
  compute(spec, state) {
    const v = valuesOf(spec, state);
    const rows = spec.rows.map((row) => {
      const tensors = row.tensors.map((t) => ({ label: t.label, x: FORMULAS[t.formula](v) }));
      for (const t of tensors) if (!(t.x >= 0)) throw new Error(`${row.label}, ${t.label}: ${t.x} is not an amount`);
      return { ...row, tensors: tensors.filter((t) => t.x), total: sum(tensors.map((t) => t.x)) };
    });
    return { rows, total: sum(rows.map((row) => row.total)), whole: FORMULAS[spec.whole](v), v, subject: subjectOf(spec, state) };
  },
  all: (r) => `${r.v.layers} blocks keep ${amount(r.whole, "B")}.`,
  describe(spec, r) {
    const said = r.rows.filter((row) => row.total).map((row) => `${row.label} ${amount(row.total, "B")}`).join(", ");
    return `${r.subject}, batch ${grouped(String(r.v.batch))}, sequence ${grouped(String(r.v.sequence))}: one block keeps `
      + `${amount(r.total, "B")} for backward: ${said}. ${block.all(r)}`;
  },
  change(spec, a, b, what) {
    const moved = b.rows.map((row, i) => [row.label, a.rows[i].total, row.total]).filter(([, x, y]) => x !== y)
      .map(([label, x, y]) => `${label} ${amount(x, "B")}${ARROW}${amount(y, "B")}`);
    const total = a.total === b.total ? `the block stays at ${amount(b.total, "B")}`
      : `the block ${amount(a.total, "B")}${ARROW}${amount(b.total, "B")}`;
    return `${what}: ${[...moved, total].join("; ")}. ${block.all(b)}`;
  },
  draw(spec, r, paint) {
    const [stream, name, left, top, bar, gap] = [16, 34, 132, 14, 22, 8];
    const y = (i) => top + i * (bar + gap);
    const longest = Math.max(...r.rows.map((row) => row.total)) || 1;
    const x = (value) => left + (value / longest) * (WIDTH - left - 250);
    const bottom = y(r.rows.length);
    paint.line(stream, top - 12, stream, bottom, { class: "everybyte-mark" }); // the residual stream, which branches leave and join
    r.rows.forEach((row, i) => {
      const middle = y(i) + bar / 2;
      if (row.tensors.length || row.note.startsWith("its input")) paint.rect(name, y(i), left - name - 10, bar, { class: "everybyte-current", rx: 4 });
      if (row.label === "+") {
        paint.line(stream, middle, name + 8, middle, { class: "everybyte-mark" });
        paint.element("circle", { cx: stream, cy: middle, r: 7, class: "everybyte-operation" });
        paint.text(stream, middle, "+", { anchor: "middle", bold: true });
      } else {
        if (row.label.startsWith("norm")) paint.line(stream, middle, name, middle, { class: "everybyte-mark" });
        paint.text(name + 8, middle, row.label, { bold: row.total > 0 });
      }
      let at = 0;
      for (const t of row.tensors) {
        const width = x(at + t.x) - x(at);
        paint.part(x(at), y(i), Math.max(width, 2), bar, "activations", `${row.label}, ${t.label}: ${amount(t.x, "B")}`);
        if (width > 6.8 * t.label.length + 12) paint.pill(x(at) + width / 2, middle, t.label, spec.looks.activations);
        at += t.x;
      }
      const narrow = row.tensors.filter((t) => x(t.x) - left <= 6.8 * t.label.length + 12).map((t) => t.label);
      const room = (WIDTH - x(at)) / 6.6 - amount(row.total, "B").length - 9;
      const names = narrow.join(", ").length > room ? `${narrow.length} more` : narrow.join(", ");
      const beside = narrow.length ? ` (${narrow.length < row.tensors.length ? "with " : ""}${names})` : "";
      const words = row.total ? amount(row.total, "B") + beside : row.note;
      paint.text(row.total ? x(at) + 8 : left, middle, words, {});
    });
    paint.text(left, bottom + 8, `one block: ${amount(r.total, "B")}`, { bold: true });
    return bottom + 24;
  },
};

const timeline = {
  // The ledger walked: [name, moment, block] and live bytes by part of every operation that takes something.
  compute(spec, state) {
    const v = valuesOf(spec, state);
    const sizes = {};
    for (const name of spec.sizes) {
      sizes[name] = FORMULAS[name](v);
      if (!(sizes[name] >= 0)) throw new Error(`${name}: ${sizes[name]} is not an amount`);
    }
    const live = Object.fromEntries(Object.entries(spec.rest).map(([p, name]) => [p, sizes[name]]));
    const [ops, course, marks] = [[], [], {}];
    const see = (...op) => { ops.push(op); course.push({ ...live }); };
    const run = (section, owner = 0) => {
      for (const [moment, name, taken, gone] of spec.sections[section]) {
        for (const [p, size] of taken) live[p] = (live[p] ?? 0) + sizes[size];
        if (taken.some(([, size]) => sizes[size])) see(name, moment, owner);
        for (const [p, size] of gone) live[p] -= sizes[size];
      }
    };
    const mark = (name) => { marks[name] = ops.length; see(name, name, 0); };
    mark("rest");
    const rest = { ...live };
    run("start");
    for (let i = 1; i <= v.layers; i++) run("block_forward", i);
    run("loss");
    mark(spec.marks[0]);
    run("loss_backward");
    for (let i = v.layers; i >= 1; i--) run("block_backward", i);
    run("end");
    mark(spec.marks[1]);
    run("optimizer");
    mark(spec.marks[2]);
    ops.push(["rest", "rest", 0]);
    course.push(rest);
    const total = course.map((parts) => sum(Object.values(parts)));
    const top = total.indexOf(total.reduce((a, b) => Math.max(a, b)));
    const last = total.length - 1;
    const at = [Math.floor((2 * state.place * last + spec.places) / (2 * spec.places)), top, ...spec.marks.map((m) => marks[m])][state.look];
    return { ops, course, total, marks, top, last, at, v, subject: subjectOf(spec, state) };
  },
  parts: (spec, r) => Object.keys(spec.labels).filter((p) => r.course[r.at][p]).map((p) => [p, r.course[r.at][p]]),
  instant(spec, r) {
    const [name, moment, owner] = r.ops[r.at];
    const where = owner ? `, block ${owner} of ${r.v.layers}` : "";
    const what = (name === moment ? name.replaceAll("_", " ") : `${moment}${where}, ${name}`) + (r.at === r.top ? " (the peak)" : "");
    const inside = timeline.parts(spec, r).map(([p, x]) => `${spec.labels[p]} ${amount(x, "B")}`).join(", ");
    return `Operation ${grouped(String(r.at))} of ${grouped(String(r.last))}, ${what}: ${inside}; ${amount(r.total[r.at], "B")} in all.`;
  },
  describe(spec, r) {
    return `${r.subject}, batch ${grouped(String(r.v.batch))}, sequence ${grouped(String(r.v.sequence))}: the peak of `
      + `${amount(r.total[r.top], "B")} is in ${r.ops[r.top][1]}. ${timeline.instant(spec, r)}`;
  },
  change(spec, a, b, what) {
    const [before, now] = [a, b].map((r) => `${amount(r.total[r.top], "B")} in ${r.ops[r.top][1]}`);
    const peak = before === now ? "" : `the peak ${before}${ARROW}${now}. `;
    return `${what}: ${peak}${timeline.instant(spec, b)}`;
  },
  draw(spec, r, paint) {
    const [left, top, bottom, right] = [76, 34, 290, WIDTH - 12];
    const high = r.total[r.top] * 1.06;
    const x = (i) => left + (i / r.last) * (right - left);
    const y = (value) => bottom - (value / high) * (bottom - top);
    for (const k of [0, 0.25, 0.5, 0.75, 1]) {
      const value = r.total[r.top] * k;
      paint.line(left, y(value), right, y(value), { class: "everybyte-grid" });
      paint.text(left - 6, y(value), amount(value, "B"), { anchor: "end" });
    }
    // No more points than the picture can show: of the operations that share a place, the one with the most bytes.
    const shown = [];
    const step = Math.max(1, Math.floor(r.total.length / 1200));
    for (let i = 0; i <= r.last; i += step) {
      let most = i;
      for (let j = i; j < Math.min(i + step, r.total.length); j++) if (r.total[j] > r.total[most]) most = j;
      shown.push(most);
    }
    let floor = shown.map(() => 0);
    for (const p of Object.keys(spec.labels)) {
      const roof = shown.map((i, k) => floor[k] + (r.course[i][p] ?? 0));
      if (roof.some((value, k) => value > floor[k])) {
        const edge = (values) => values.flatMap((value, k) => [[k ? shown[k] : 0, value], [shown[k + 1] ?? r.last, value]]);
        const points = [...edge(roof), ...edge(floor).reverse()].map(([i, value]) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`);
        paint.area(points.join(" "), p, spec.labels[p]);
      }
      floor = roof;
    }
    Object.entries(r.marks).filter(([, i]) => i).forEach(([name, i], k) => {
      paint.line(x(i), top - 8, x(i), bottom, { class: "everybyte-limit" });
      const end = x(i) > WIDTH / 2;
      paint.text(x(i) + (end ? -4 : 4), k % 2 ? top - 26 : top - 11, name.replaceAll("_", " "), { anchor: end ? "end" : "start" });
    });
    const middle = x(Math.min(r.at + 0.5, r.last));
    paint.line(middle, top - 4, middle, y(r.total[r.at]), { class: "everybyte-mark" }); // above and below: not over what it points at
    paint.element("polygon", { points: `${middle - 5},${bottom + 9} ${middle + 5},${bottom + 9} ${middle},${bottom + 1}`, class: "everybyte-mark" });
    const [px, py] = [x(r.top), y(r.total[r.top])];
    paint.element("polygon", { points: `${px - 5},${py - 9} ${px + 5},${py - 9} ${px},${py - 1}`, class: "everybyte-mark" });
    const away = px > WIDTH / 2;
    paint.text(px + (away ? -10 : 10), py - 5, `peak ${amount(r.total[r.top], "B")}, ${r.ops[r.top][1]}`, { anchor: away ? "end" : "start", bold: true });
    paint.text((left + right) / 2, bottom + 20, `the ${grouped(String(r.last))} operations of the step, in order`, { anchor: "middle" });
    return paint.legend(bottom + 34, timeline.parts(spec, r).map(([p, value]) => [p, `${spec.labels[p]} ${amount(value, "B")}`]));
  },
};

const short = (x) => String(Number(x.toPrecision(6)));
const power = (x) => `2^${short(Number(Math.log2(x).toFixed(3)))}`;

const plain = (x) => (x < 1e6 ? grouped(short(x)) : x.toExponential(2));

// What a format makes of a number: round to nearest, ties to even (IEEE 754).
function round(x, f) {
  const steps = Math.floor(x / f.spacing);
  const rest = x / f.spacing - steps;
  const rounded = (steps + (rest > 0.5 || (rest === 0.5 && steps % 2) ? 1 : 0)) * f.spacing;
  if (rounded > f.largest) return { fate: "overflows", verdict: "overflows: it is above the largest" };
  if (rounded === 0) return { fate: "loses it", verdict: "underflows: it becomes 0" };
  if (rounded === x) return { fate: "keeps it", verdict: "is kept exactly" };
  const percent = (100 * Math.abs(rounded - x)) / x;
  const error = percent < 0.01 ? "under 0.01 % off" : `${fixed(percent, 2)} % off`;
  return { fate: `rounds it, ${error}`, verdict: `is rounded to ${Number((rounded / 2 ** Math.floor(Math.log2(x))).toPrecision(6))} \u00d7 2^${Math.floor(Math.log2(x))}, ${error}` };
}

const KINDS = { stack, lines, ranges, block, timeline };

function describe(spec, state) {
  const kind = KINDS[spec.kind];
  return kind.describe(spec, kind.compute(spec, state));
}

function change(spec, before, state, preset) {
  const kind = KINDS[spec.kind];
  return kind.change(spec, kind.compute(spec, before), kind.compute(spec, state), whatChanged(spec, before, state, preset));
}

export const pure = { FORMULAS, amount, change, describe, followed, snapped, valuesOf };

// ---- the page ---------------------------------------------------------------------------------------------------

const WIDTH = 760;
const SVG = "http://www.w3.org/2000/svg";
const HATCHES = {
  "//": "M-1 1L1 -1M0 8L8 0M7 9L9 7", "\\\\": "M-1 7L1 9M0 0L8 8M7 -1L9 1", "..": "M3 4h2", "++": "M4 0V8M0 4H8",
  xx: "M0 0L8 8M0 8L8 0", "--": "M0 4H8", "||": "M4 0V8",
};

function node(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function painter(svg, looks, id) {
  const put = (name, attributes, ...children) => svg.appendChild(node(name, attributes, ...children));
  const defs = put("defs", {});
  for (const [name, look] of Object.entries(looks)) {
    const attributes = { id: `${id}-${name}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" };
    const pattern = defs.appendChild(node("pattern", attributes, node("rect", { width: 8, height: 8, fill: look.color })));
    if (look.hatch) pattern.append(node("path", { d: HATCHES[look.hatch], stroke: "#FBFAF6", "stroke-width": 1.4, fill: "none" }));
  }
  const paint = {
    element: put,
    line: (x1, y1, x2, y2, more) => put("line", { x1, y1, x2, y2, ...more }),
    rect: (x, y, width, height, more) => put("rect", { x, y, width: Math.max(width, 0), height, ...more }),
    text(x, y, words, { anchor = "start", bold = false, fill }) {
      const style = { x, y, "text-anchor": anchor, "dominant-baseline": "central", "font-weight": bold ? "bold" : "normal" };
      put("text", { ...style, ...(fill ? { style: `fill: ${fill}` } : { class: "everybyte-free" }) }).textContent = words;
    },
    part(x, y, width, height, name, title) {
      const bar = paint.rect(x, y, width, height, { fill: `url(#${id}-${name})`, class: "everybyte-part" });
      bar.appendChild(node("title", {})).textContent = title;
    },
    area(points, name, title) {
      const shape = put("polygon", { points, fill: `url(#${id}-${name})`, class: "everybyte-part", style: "stroke: none" });
      shape.appendChild(node("title", {})).textContent = title;
    },
    pill(x, y, words, look) {
      const width = 6.6 * words.length + 8;
      if (look.hatch) paint.rect(x - width / 2, y - 9, width, 18, { fill: look.color, rx: 4 });
      paint.text(x, y, words, { anchor: "middle", fill: look.ink });
    },
    legend(y, entries) {
      let [x, line] = [8, y];
      for (const [name, words] of entries) {
        const width = 30 + 6.9 * words.length + 14;
        if (x + width > WIDTH && x > 8) [x, line] = [8, line + 20];
        paint.part(x, line, 22, 13, name, words);
        paint.text(x + 28, line + 7, words, {});
        x += width;
      }
      return line + 22;
    },
  };
  return paint;
}

function render({ model, el }) {
  const spec = model.get("spec");
  const kind = KINDS[spec.kind];
  const root = document.createElement("div");
  root.className = "everybyte-picture";
  const title = document.createElement("div");
  title.className = "everybyte-title";
  title.textContent = spec.title;
  const place = document.createElement("div");
  const said = document.createElement("p");
  said.className = "everybyte-sentence";
  said.setAttribute("aria-live", "polite");
  root.append(title, place, said);
  el.append(root);
  const id = `everybyte-${Math.random().toString(36).slice(2)}`;
  const traits = Object.fromEntries(spec.controls.map((c) => [c.name, `c_${c.name}`]));
  const read = () => Object.fromEntries(spec.controls.map((c) => [c.name, model.get(traits[c.name])]));
  let before = null; // the last state drawn, and what it gave
  let result = null;
  let preset = "";
  let [waiting, pressing] = [false, false];

  function write(state) {
    const now = read();
    const moved = spec.controls.filter((c) => now[c.name] !== state[c.name]);
    for (const c of moved) model.set(traits[c.name], state[c.name]);
    if (moved.length) model.save_changes();
  }

  const holds = (i, state) => spec.presets[i] && Object.entries(spec.presets[i].state).every(([name, value]) => state[name] === value);

  // The preset that the state is, the one pressed first; null where it is none.
  function press(state) {
    const now = model.get("preset");
    const index = holds(now, state) ? now : spec.presets.findIndex((_, i) => holds(i, state));
    pressing = true;
    model.set("preset", index < 0 ? null : index);
    pressing = false;
    if (model.get("preset") !== now) model.save_changes();
  }

  function redraw() {
    waiting = false;
    try {
      const raw = read();
      if (Object.values(raw).some((value) => value === null || value === undefined)) return;
      const state = snapped(spec, preset ? raw : followed(spec, raw, before), before);
      write(state);
      press(state);
      const same = before && spec.controls.every((c) => before[c.name] === state[c.name]);
      if (same && result) return;
      const now = kind.compute(spec, state);
      const svg = node("svg", { role: "img" });
      const height = kind.draw(spec, now, painter(svg, spec.looks, id));
      svg.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
      svg.setAttribute("aria-label", `${spec.title}. ${kind.describe(spec, now)}`);
      place.replaceChildren(svg);
      said.textContent = result ? kind.change(spec, result, now, whatChanged(spec, before, state, preset)) : kind.describe(spec, now);
      [before, result, preset] = [state, now, ""];
    } catch (error) {
      const alert = document.createElement("pre");
      alert.className = "everybyte-error";
      alert.setAttribute("role", "alert");
      alert.textContent = `This picture could not be drawn. ${error}`;
      place.replaceChildren(alert);
      said.textContent = "";
      result = null;
    }
  }

  function soon() {
    if (!waiting) queueMicrotask(redraw);
    waiting = true;
  }

  function pick() {
    const chosen = spec.presets[model.get("preset")];
    if (pressing || !chosen) return;
    preset = chosen.label;
    write({ ...read(), ...chosen.state });
    soon();
  }

  for (const trait of Object.values(traits)) model.on(`change:${trait}`, soon);
  model.on("change:preset", pick);
  redraw();
  return () => {
    for (const trait of Object.values(traits)) model.off(`change:${trait}`, soon);
    model.off("change:preset", pick);
  };
}

export default { render };
