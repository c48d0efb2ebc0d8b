// The picture of an explorer: it evaluates the registry's formulas, draws an SVG and says in words what changed.
// Python puts the formulas, printed as JavaScript, into the object below; nothing is evaluated from text at run time.
const FORMULAS = {/* formulas */};

// What the sizes of a course call.
const helpers = { up: (a, b) => Math.ceil(a / b), whole: (a, b) => Math.round(a / b), down: (a, b) => Math.floor(a / b), least: Math.min, most: Math.max };

const UNITS = { EiB: 2 ** 60, PiB: 2 ** 50, TiB: 2 ** 40, GiB: 2 ** 30, MiB: 2 ** 20, KiB: 2 ** 10 };
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
    if (Math.abs(x) >= size || (size > 1e3 && Math.abs(Number(fixed((1000 * x) / size, 1))) >= 1000)) return `${fixed(x / size, 1)} ${suffix}`;
  }
  return String(Number(x.toPrecision(6)));
}

function amount(x, unit) {
  if (unit !== "B") return `${count(x)} ${unit}`.trim();
  const up = (u) => (Math.abs(Number(fixed((1024 * x) / UNITS[u], 2))) >= 1024 && !(u === "KiB" && Number.isInteger(x)));
  const name = Object.keys(UNITS).find((u) => Math.abs(x) >= UNITS[u] || up(u));
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

// The controls that one moves with it: those of the option now, or the slider's own.
const setBy = (control, state) => (control.options ? control.options[state[control.name]].sets : control.sets);

// A newly chosen option, or a moved slider, moves the controls that it sets.
function followed(spec, state, before) {
  const out = { ...state };
  for (const c of spec.controls) {
    if (before && before[c.name] !== state[c.name]) Object.assign(out, setBy(c, state));
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
  const set = moved.flatMap((c) => Object.keys(setBy(c, state)));
  const said = moved.filter((c) => !set.includes(c.name));
  const words = said.map((c) => `${c.label} ${labelOf(c, before[c.name])}${ARROW}${labelOf(c, state[c.name])}`).join(", ");
  return words.slice(0, 1).toUpperCase() + words.slice(1);
}

const sum = (list) => list.reduce((a, b) => a + b, 0);

// Round numbers from 0 to `most`, four to six or so; of bytes they are round in the unit that fits.
function ticks(most, unit = "B") {
  const base = (unit === "B" && Object.values(UNITS).find((size) => most >= size)) || 1;
  const rough = most / base / 5 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((k) => k * power >= rough) * power * base;
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => i * step);
}

// Seconds in seconds, however many.
const tick = (value, unit = "B") => unit === "s" ? `${grouped(short(value))} s`
  : amount(value, unit).replace(/(\.\d*?)0+(?= |$)/, "$1").replace(/\.(?= |$)/, "");

// Where an axis of these values is named: on a logarithmic one at powers of two, else at so many parts of its end.
function places(values, log, parts) {
  const last = values.length - 1;
  const [first, end] = [Math.ceil(Math.log2(values[0])), Math.floor(Math.log2(values[last]))];
  const step = Math.ceil((end - first) / parts);
  if (log && step > 0) return Array.from({ length: Math.floor((end - first) / step) + 1 }, (_, i) => 2 ** (first + i * step));
  const even = Array.from({ length: parts }, (_, i) => ((i + 1) * values[last]) / parts);
  return even[0] >= values[0] && even.every(Number.isInteger) ? even : [values[0], values[last]];
}

// ---- courses: a step's operations, added up as courses.py does --------------------------------------------------

const courses = {
  // The step that the values choose: bytes of each size, live bytes by part between steps, and its operations.
  chosen({ courses: c }, v) {
    const found = {};
    const size = (i) => {
      if (!(i in found)) {
        found[i] = FORMULAS[c.sizes[i]](v);
        if (!(found[i] >= 0)) throw new Error(`${c.sizes[i]}: ${found[i]} is not an amount`);
      }
      return found[i];
    };
    const [live, items] = [{}, []];
    for (const [cases, by] of [[c.batches, c.by], [c.updates, c.update_by]]) {
      const key = by.map((name) => v[name]).join(",");
      if (!(key in cases)) throw new Error(`no step for ${by.map((name) => `${name} ${v[name]}`).join(", ")}`);
      courses.take(live, c.steps[cases[key]].rest, size, 1);
      items.push(...c.steps[cases[key]].items);
    }
    return { size, live, items };
  },
  take(live, pieces, size, sign) {
    for (const [p, i] of pieces) live[p] = (live[p] ?? 0) + sign * size(i);
  },
  // Where the most bytes live first, and how many of each part. Of what repeats, the first turn and the last are looked at.
  peak(spec, v) {
    const c = spec.courses;
    const { size, live, items } = courses.chosen(spec, v);
    let [top, where, parts] = [0, "", {}];
    const walk = (some) => {
      for (const item of some) {
        if (typeof item === "number") {
          for (const o of c.bodies[item][0]) {
            const [, place, , taken, freed] = c.operations[o];
            courses.take(live, taken, size, 1);
            const total = taken.length ? sum(Object.values(live)) : 0;
            if (total > top) [top, where, parts] = [total, place, { ...live }];
            courses.take(live, freed, size, -1);
          }
          continue;
        }
        const [times, before] = [size(item[0]), { ...live }];
        if (times > 0) walk(item[3]);
        if (times > 1) {
          for (const p of Object.keys(live)) live[p] += (live[p] - (before[p] ?? 0)) * (times - 2);
          walk(item[3]);
        }
      }
    };
    walk(items);
    return { where, parts: spec.parts.map((p) => parts[p.formula] ?? 0) };
  },
  // Every operation that takes something: [name, place, block or 0], live bytes by part, and where each phase ends.
  unrolled(spec, v) {
    const c = spec.courses;
    const { size, live, items } = courses.chosen(spec, v);
    const [ops, course, marks] = [[["rest", "rest", 0]], [{ ...live }], { rest: 0 }];
    const walk = (some, turns) => {
      for (const item of some) {
        if (typeof item !== "number") {
          const [i, down, loop, inner] = item;
          const times = size(i);
          for (let turn = 0; turn < times; turn++) walk(inner, { ...turns, [loop]: down ? times - 1 - turn : turn });
          continue;
        }
        const [ran, ...numbers] = c.bodies[item];
        const [block, segment] = numbers.map(([index, after], k) => index + (after === null ? turns[k ? "segment" : "block"] ?? 0 : size(after) - 1));
        for (const o of ran) {
          const [name, place, owner, taken, freed] = c.operations[o];
          courses.take(live, taken, size, 1);
          const mark = c.marks.includes(name);
          if (mark) marks[name] = ops.length;
          if (mark || taken.length) {
            ops.push([name, place, c.named ? owner : owner.startsWith("blocks.") ? block + segment * (v.segment ?? 1) + 1 : 0]);
            course.push({ ...live });
          }
          courses.take(live, freed, size, -1);
        }
      }
    };
    walk(items, {});
    ops.push(["rest", "rest", 0]);
    course.push(course[0]);
    return { ops, course, marks };
  },
};

// ---- the kinds of picture: each has compute, describe, change, draw ---------------------------------------------

const stack = {
  compute(spec, state) {
    const control = spec.controls.find((c) => c.name === spec.bars);
    const rows = (control ? control.options : [{ label: "", values: {} }]).map((option, i) => {
      const v = valuesOf(spec, state, control ? option.values : {});
      const { parts, where } = spec.courses ? courses.peak(spec, v) : { parts: spec.parts.map((p) => FORMULAS[p.formula](v)) };
      return { label: option.label, parts, where, total: sum(parts), current: !control || i === state[spec.bars], v };
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
    const above = multi && paint.narrow; // the labels stand above their bars
    const left = multi && !above ? 16 + Math.max(...r.rows.map((x) => paint.measure(x.label, true))) : 8;
    const words = (row) => part(row.total, spec.unit) + (r.capacity !== undefined && row.total > r.capacity ? ", too much" : "");
    const right = paint.width - 14 - Math.max(...r.rows.map((row) => paint.measure(words(row), true)));
    const [bar, gap] = !multi ? [56, 12] : r.rows.length > 8 ? [22, 5] : [28, 12]; // many stand closer: all are seen at once
    const [head, top, rim] = [above ? 20 : 0, 26, Math.min(gap / 2, 5)];
    const longest = Math.max(...r.rows.map((x) => x.total)) || 1;
    const near = r.capacity !== undefined && r.capacity <= 4 * longest;
    const limit = paint.end("bars", Math.max(longest, near ? r.capacity * 1.02 : 0));
    const x = (value) => left + (value / limit) * (right - left);
    const place = (i) => top + head + i * (bar + gap + head);
    const bottom = place(r.rows.length) - head;
    if (multi) paint.rect(1, place(r.rows.indexOf(r.now)) - head - rim, paint.width - 2, bar + head + 2 * rim, { class: "everybyte-current", rx: 4 });
    if (near) paint.line(x(r.capacity), top - 8, x(r.capacity), bottom - gap + 8, { class: "everybyte-limit" });
    r.rows.forEach((row, i) => {
      const y = place(i);
      const more = { bold: row.current, on: multi && row.current };
      if (above) paint.text(8, y - 11, row.label, more);
      else if (multi) paint.text(left - 8, y + bar / 2, row.label, { anchor: "end", ...more });
      let at = 0;
      row.parts.forEach((value, j) => {
        if (!value) return;
        const text = part(value, spec.unit);
        const width = x(at + value) - x(at);
        paint.part(x(at), y, width, bar, spec.parts[j].part, `${spec.parts[j].label}: ${text}`);
        if (width > paint.measure(text) + 10) paint.pill(x(at) + width / 2, y + bar / 2, text, spec.looks[spec.parts[j].part]);
        at += value;
      });
      paint.text(x(at) + 6, y + bar / 2, words(row), more);
    });
    if (r.capacity !== undefined) {
      const beyond = near ? "" : ", beyond this scale" + ARROW;
      const words = `${r.now.v.capacity_label}: ${amount(r.capacity, "B")}${beyond}`;
      paint.near(near ? x(r.capacity) : paint.width - 2, 9, words, { end: !near || x(r.capacity) > paint.width / 2 });
    }
    // The row now in numbers; what only others have has its name there too.
    return paint.legend(bottom + 6, spec.parts.map((p, j) => [p.part, p.label, j]).filter(([, , j]) => r.rows.some((row) => row.parts[j]))
      .map(([look, label, j]) => [look, `${label} ${part(r.now.parts[j], spec.unit)}` + (spec.shares ? ` (${fixed((100 * r.now.parts[j]) / r.now.total, 1)} %)` : "")]));
  },
};

const peak = {
  ...stack,
  describe: (spec, r) => `${stack.describe(spec, r)} The peak is in ${r.now.where}.`,
  change: (spec, a, b, what) => stack.change(spec, a, b, what)
    + (a.now.where === b.now.where ? "" : ` The peak moves from ${a.now.where} to ${b.now.where}.`),
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
    const xs = spec.x.values ?? Array.from({ length: 16 }, (_, i) => (i + 1) * Math.max(1, Math.floor(at / 8)));
    const curves = spec.curves.map((c) => ({ ...c, ys: xs.map((value) => run(c.formula, value)), now: run(c.formula, at) }));
    return { xs, curves, at, capacity: base.capacity, subject: subjectOf(spec, state), label: base.capacity_label };
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
    const longest = Math.max(...r.curves.map((c) => paint.measure(c.label)));
    const beside = longest < paint.width * 0.3; // a curve's name at its end, or all of them in a legend
    const [top, bottom, right] = [12, 270, paint.width - (beside ? longest + 14 : 34)];
    const xs = r.xs ?? spec.x.values;
    const log = spec.log;
    const all = r.curves.flatMap((c) => [...c.ys, c.now]).filter((y) => !log || y > 0);
    // A logarithmic axis runs between round numbers: 1 and 32 of KiB, MiB and so on, or powers of ten.
    const base = spec.unit === "B" ? 32 : 10;
    const power = (value, way) => way(Number((Math.log(value) / Math.log(base)).toFixed(9)));
    const [low, high] = log ? paint.span("amounts", power(Math.min(...all), Math.floor), power(Math.max(...all), Math.ceil)).map((n) => base ** n)
      : [0, paint.end("amounts", Math.max(...all) || 1, spec.unit)];
    const steps = Math.max(1, Math.round(Math.log(high / low) / Math.log(base)));
    const marks = log ? Array.from({ length: steps + 1 }, (_, i) => low * base ** i) : ticks(high, spec.unit);
    const words = (value) => tick(value, spec.unit);
    const left = 14 + Math.max(...marks.map((value) => paint.measure(words(value))));
    const share = (value, from, to) => log ? Math.log(value / from) / Math.log(to / from || 1) : (value - from) / (to - from || 1);
    const x = (value) => left + share(value, xs[0], xs[xs.length - 1]) * (right - left);
    const y = (value) => bottom - (log && value <= 0 ? 0 : share(value, low, high)) * (bottom - top);
    for (const value of marks) {
      paint.line(left, y(value), right, y(value), { class: "everybyte-grid" });
      paint.text(left - 6, y(value), words(value), { anchor: "end" });
    }
    for (const across of places(xs, log, paint.narrow ? 2 : 4)) paint.text(x(across), bottom + 14, grouped(String(across)), { anchor: "middle" });
    paint.text((left + right) / 2, bottom + 32, spec.x.label, { anchor: "middle" });
    const within = r.at >= xs[0] && r.at <= xs[xs.length - 1];
    if (within) paint.line(x(r.at), top, x(r.at), bottom, { class: "everybyte-limit" });
    const ends = r.curves.map((c, i) => ({ i, y: y(c.ys[c.ys.length - 1]) })).sort((a, b) => a.y - b.y);
    ends.forEach((e, k) => { if (k) e.y = Math.max(e.y, ends[k - 1].y + 16); });
    for (const { i, y: end } of ends) {
      const c = r.curves[i];
      const look = spec.looks[c.part];
      const points = xs.map((value, j) => `${x(value)},${y(c.ys[j])}`).join(" ");
      paint.curve(points, look, c.dash);
      if (within) paint.element("circle", { cx: x(r.at), cy: y(c.now), r: 5, fill: look.color, class: "everybyte-mark" });
      if (beside) paint.text(right + 8, end, c.label, {});
    }
    return beside ? bottom + 46 : paint.legend(bottom + 48, r.curves.map((c) => [c.part, c.label, c.dash]));
  },
};

// What sequences take where a model generates, and for each context the most that fit: explore/serving.py's.
const fitting = {
  ...stack,
  found: new Map(), // the curves of a model on a GPU: no other control moves them
  most(spec, v, way, context) {
    const base = { ...v, ...spec.ways[way], context };
    const size = (n) => {
      const [d, c] = [base.decode, context];
      return sum(courses.peak(spec, { ...base, B: n, C: c, S: d ? 1 : c - 1, T: c - 1 + d, T_0: (c - 1) * d }).parts);
    };
    const least = size(1);
    if (least > v.capacity) return 0;
    let [low, high] = [1, spec.unlimited + 1];
    const each = Math.max(1, size(2) - least);
    while (high - low > 1) {
      const middle = Math.min(Math.max(low + Math.floor((v.capacity - size(low)) / each), low + 1), high - 1);
      if (size(middle) <= v.capacity) low = middle;
      else high = middle;
    }
    return low;
  },
  compute(spec, state) {
    const r = stack.compute(spec, state);
    const v = valuesOf(spec, state);
    for (const row of r.rows) row.most = fitting.most(spec, v, row.label, v.context);
    const key = `${state.model},${state.gpu}`;
    if (!fitting.found.has(key)) {
      fitting.found.set(key, spec.curves.map((c) => spec.contexts.map((context) => fitting.most(spec, v, c.label, context))));
    }
    const curves = spec.curves.map((c, i) => ({ ...c, ys: fitting.found.get(key)[i], now: r.rows.find((row) => row.label === c.label).most }));
    return { ...r, context: v.context, lines: { curves, at: v.context } };
  },
  fits(r) {
    const rows = r.rows.map((row) => `${row.label} ${grouped(String(row.most))}`).join(", ");
    return ` Sequences of ${grouped(String(r.context))} tokens that fit at most: ${rows}.`;
  },
  describe(spec, r) {
    return stack.describe(spec, r) + (r.now.where ? ` The largest moment is in ${r.now.where}.` : "") + fitting.fits(r);
  },
  change(spec, a, b, what) {
    const same = a.context === b.context && a.rows.every((row, i) => row.most === b.rows[i].most);
    return stack.change(spec, a, b, what) + (same ? "" : fitting.fits(b));
  },
  draw(spec, r, paint) {
    const rows = r.rows.map((row) => ({ ...row, label: `${row.label}: at most ${grouped(String(row.most))}` }));
    const bottom = stack.draw(spec, { ...r, rows, now: rows.find((row) => row.current) }, paint) + 12;
    if (!r.lines.curves.some((c) => c.ys.some((y) => y))) {
      paint.text(8, bottom, "Not one sequence fits, at any context.", {});
      return bottom + 24;
    }
    const lower = {
      ...paint,
      line: (x1, y1, x2, y2, more) => paint.line(x1, y1 + bottom, x2, y2 + bottom, more),
      text: (x, y, words, more) => paint.text(x, y + bottom, words, more),
      element: (name, more) => paint.element(name, { ...more, cy: more.cy + bottom }),
      curve: (points, look, dash) => paint.curve(points.split(" ").map((p) => p.split(",").map(Number)).map(([x, y]) => `${x},${y + bottom}`).join(" "), look, dash),
      legend: (y, entries) => paint.legend(y + bottom, entries) - bottom,
    };
    const x = { name: "context", label: "context (tokens): the most sequences that fit", values: spec.contexts };
    return bottom + lines.draw({ ...spec, x, unit: "", log: true }, r.lines, lower);
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
    const [left, top, bar, gap] = [paint.narrow ? 80 : 96, 30, 24, 14];
    const logs = r.rows.flatMap((row) => [Math.log2(row.smallest), Math.log2(row.largest)]).concat(r.at);
    const [low, high] = paint.span("exponents", Math.min(...logs), Math.max(...logs));
    const span = high - low || 1;
    const x = (exponent) => left + 52 + ((exponent - low) / span) * (paint.width - left - 132);
    const bottom = top + r.rows.length * (bar + gap);
    const words = [];
    paint.rect(1, top - 5, paint.width - 2, bar + 10, { class: "everybyte-current", rx: 4 });
    r.rows.forEach((row, i) => {
      const y = top + i * (bar + gap);
      const [a, b, c] = [row.smallest, row.normal, row.largest].map((value) => x(Math.log2(value)));
      if (b > a) paint.part(a, y, b - a, bar, "casts", `${row.label}, subnormal: fewer bits`);
      paint.part(b, y, Math.max(c - b, 1), bar, "parameters", `${row.label}, normal`);
      const on = !i;
      words.push([left - 8, y, row.label, { anchor: "end", bold: on, on }], [a - 4, y, power(row.smallest), { anchor: "end", on }], [c + 4, y, plain(row.largest), { on }]);
    });
    paint.line(x(r.at), top - 10, x(r.at), bottom - gap + 6, { class: "everybyte-limit" });
    for (const [at, y, text, more] of words) paint.text(at, y + bar / 2, text, more);
    paint.near(x(r.at), 10, `${spec.thing} 2^${short(r.at)}: ${r.now.fate}`, { end: x(r.at) > paint.width / 2, bold: true });
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
    const longest = paint.end("bars", Math.max(...r.rows.map((row) => row.total)) || 1);
    const x = (value) => left + (value / longest) * (paint.width - left - (paint.narrow ? 90 : 265));
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
        paint.text(name + 8, middle, row.label, { bold: row.total > 0, on: row.tensors.length > 0 || row.note.startsWith("its input") });
      }
      let at = 0;
      for (const t of row.tensors) {
        const width = x(at + t.x) - x(at);
        paint.part(x(at), y(i), Math.max(width, 2), bar, "activations", `${row.label}, ${t.label}: ${amount(t.x, "B")}`);
        if (width > paint.measure(t.label) + 12) paint.pill(x(at) + width / 2, middle, t.label, spec.looks.activations);
        at += t.x;
      }
      const narrow = row.tensors.filter((t) => x(t.x) - left <= paint.measure(t.label) + 12).map((t) => t.label);
      const list = ` (${narrow.length < row.tensors.length ? "with " : ""}${narrow.join(", ")})`;
      const fits = paint.measure(amount(row.total, "B") + list) < paint.width - x(at) - 10;
      const beside = !narrow.length ? "" : fits ? list : paint.narrow ? "" : list.replace(narrow.join(", "), `${narrow.length} more`);
      const words = row.total ? amount(row.total, "B") + beside : row.note;
      paint.text(row.total ? x(at) + 8 : left, middle, words, { room: paint.width - (row.total ? x(at) + 8 : left) });
    });
    paint.text(left, bottom + 8, `one block: ${amount(r.total, "B")}`, { bold: true });
    return bottom + 24;
  },
};

const timeline = {
  compute: (spec, state) => timeline.walked(spec, state),
  walked(spec, state, more = {}) {
    const v = valuesOf(spec, state, more);
    const { ops, course, marks } = courses.unrolled(spec, v);
    const total = course.map((parts) => sum(Object.values(parts)));
    const top = total.indexOf(total.reduce((a, b) => Math.max(a, b)));
    const last = total.length - 1;
    const at = [Math.floor((2 * state.place * last + spec.places) / (2 * spec.places)), top, ...spec.courses.marks.map((m) => marks[m])][state.look];
    return { ops, course, total, marks, top, last, at, v, subject: subjectOf(spec, state) };
  },
  label: (spec, part) => spec.labels.find(([p]) => p === part)[1],
  // What lives at the instant, of every part that lives at any: what is drawn has its name in the legend.
  parts: (spec, r) => spec.labels.map(([p]) => [p, r.course[r.at][p] ?? 0]).filter(([p]) => r.course.some((parts) => parts[p])),
  instant(spec, r) {
    const [name, moment, owner] = r.ops[r.at];
    const where = !owner ? "" : spec.courses.named ? `, module ${owner}` : `, block ${owner} of ${r.v.layers}`;
    const what = (name === moment || r.marks[name] === r.at ? name.replaceAll("_", " ") : `${moment}${where}, ${name}`) + (r.at === r.top ? " (the peak)" : "");
    const inside = timeline.parts(spec, r).filter(([, x]) => x).map(([p, x]) => `${timeline.label(spec, p)} ${amount(x, "B")}`).join(", ");
    return `Operation ${grouped(String(r.at))} of ${grouped(String(r.last))}, ${what}: ${inside}; ${amount(r.total[r.at], "B")} in all.`;
  },
  describe(spec, r) {
    const sizes = (spec.sizes ?? ["batch", "sequence"]).map((name) => `${name} ${grouped(String(r.v[name]))}`).join(", ");
    return `${r.subject ? `${r.subject}, ` : ""}${sizes}: the peak of `
      + `${amount(r.total[r.top], "B")} is in ${r.ops[r.top][1]}. ${timeline.instant(spec, r)}`;
  },
  change(spec, a, b, what) {
    const [before, now] = [a, b].map((r) => `${amount(r.total[r.top], "B")} in ${r.ops[r.top][1]}`);
    const peak = before === now ? "" : `the peak ${before}${ARROW}${now}. `;
    return `${what}: ${peak}${timeline.instant(spec, b)}`;
  },
  draw(spec, r, paint) {
    const [left, top, bottom, right] = [80, 36, 268, paint.width - 12];
    const end = paint.end("bytes", Math.max(r.plain ?? 0, r.total[r.top]) * 1.06, "B");
    const x = (i) => left + (i / r.last) * (right - left);
    const y = (value) => bottom - (value / end) * (bottom - top);
    for (const value of ticks(end)) {
      paint.line(left, y(value), right, y(value), { class: "everybyte-grid" });
      paint.text(left - 6, y(value), tick(value), { anchor: "end" });
    }
    // No more points than the picture can show: of the operations that share a place, the one with the most bytes.
    const shown = [];
    const tenth = (number) => Math.round(number * 10) / 10;
    const step = Math.max(1, Math.floor(r.total.length / paint.width));
    for (let i = 0; i <= r.last; i += step) {
      let most = i;
      for (let j = i; j < Math.min(i + step, r.total.length); j++) if (r.total[j] > r.total[most]) most = j;
      shown.push(most);
    }
    let floor = shown.map(() => 0);
    for (const [p, label] of spec.labels) {
      const roof = shown.map((i, k) => floor[k] + (r.course[i][p] ?? 0));
      if (roof.some((value, k) => value > floor[k])) {
        const edge = (values) => values.flatMap((value, k) => [[k ? shown[k] : 0, value], [shown[k + 1] ?? r.last, value]]);
        const points = [...edge(roof), ...edge(floor).reverse()].map(([i, value]) => `${tenth(x(i))},${tenth(y(value))}`);
        paint.area(points.join(" "), p, label);
      }
      floor = roof;
    }
    if (r.plain) {
      paint.line(left, y(r.plain), right, y(r.plain), { class: "everybyte-limit" });
      paint.text(left + 6, y(r.plain) + 11, `none: ${amount(r.plain, "B")}`, {});
    }
    let [before, raised] = [-Infinity, false];
    Object.entries(r.marks).filter(([, i]) => i).sort(([, a], [, b]) => a - b).forEach(([name, i]) => {
      paint.line(x(i), top - 8, x(i), bottom, { class: "everybyte-limit" });
      const end = x(i) > paint.width / 2;
      raised = x(i) - before < 120 && !raised; // the later of two that are close stands above, as in the figures
      before = x(i);
      paint.text(x(i) + (end ? -4 : 4), raised ? top - 26 : top - 11, name.replaceAll("_", " "), { anchor: end ? "end" : "start" });
    });
    const middle = x(Math.min(r.at + 0.5, r.last));
    paint.line(middle, top - 4, middle, y(r.total[r.at]), { class: "everybyte-mark" }); // above and below: not over what it points at
    paint.element("polygon", { points: `${middle - 5},${bottom + 9} ${middle + 5},${bottom + 9} ${middle},${bottom + 1}`, class: "everybyte-mark" });
    const [px, py] = [x(r.top), y(r.total[r.top])];
    paint.element("polygon", { points: `${px - 5},${py - 9} ${px + 5},${py - 9} ${px},${py - 1}`, class: "everybyte-mark" });
    paint.near(px, py - 5, `peak ${amount(r.total[r.top], "B")}, ${r.ops[r.top][1]}`, { gap: 10, end: px > paint.width / 2, bold: true });
    paint.text((left + right) / 2, bottom + 22, `the ${grouped(String(r.last))} operations of the step, in order`, { anchor: "middle" });
    return paint.legend(bottom + 38, timeline.parts(spec, r).map(([p, value]) => [p, `${timeline.label(spec, p)} ${amount(value, "B")}`]));
  },
};

const forgetting = {
  ...timeline,
  compute(spec, state) {
    const r = timeline.walked(spec, state);
    if (r.v.segmented || r.v.selective) {
      const plain = timeline.walked(spec, state, spec.without);
      r.plain = plain.total[plain.top];
    }
    r.left = r.course[r.marks[spec.courses.marks[0]]].activations;
    r.share = FORMULAS[spec.again](r.v) / FORMULAS[spec.done](r.v);
    return r;
  },
  // What checkpointing changes, in words.
  against(spec, r) {
    const gain = r.plain - r.total[r.top];
    const against = gain ? `, ${amount(Math.abs(gain), "B")} ${gain > 0 ? "below" : "above"} the ${amount(r.plain, "B")} without checkpointing`
      : ", the same as without checkpointing";
    const blocks = Math.min(r.v.segment, r.v.layers);
    const what = r.v.segmented ? `${blocks} block${blocks > 1 ? "s" : ""} at a time` : "attention";
    const again = r.plain ? `backward recomputes ${what}, ${fixed(100 * r.share, 1)} % more products` : "backward recomputes nothing";
    return `${r.plain ? against : ""}. Forward leaves ${amount(r.left, "B")} of activations; ${again}.`;
  },
  describe(spec, r) {
    return `${r.subject ? `${r.subject}, ` : ""}batch ${grouped(String(r.v.batch))}, sequence ${grouped(String(r.v.sequence))}: the peak of `
      + `${amount(r.total[r.top], "B")} is in ${r.ops[r.top][1]}${forgetting.against(spec, r)} ${timeline.instant(spec, r)}`;
  },
  change(spec, a, b, what) {
    const said = (r) => `${amount(r.total[r.top], "B")} in ${r.ops[r.top][1]}`;
    const [before, now] = [a, b].map((r) => said(r) + forgetting.against(spec, r));
    if (before === now) return `${what}: ${timeline.instant(spec, b)}`;
    return `${what}: the peak ${said(a)}${ARROW}${now}`;
  },
};

// Segments at a moment, each a bar of blocks: [bytes, bytes asked for, place in `parts`, name]; -1 where a block is free.
const map = {
  compute(spec, state) {
    const v = valuesOf(spec, state);
    const told = spec.moments[v.setting ?? 0];
    const longest = Math.max(1, ...told.flatMap((moment) => moment.segments.map((row) => sum(row.map(([size]) => size)))));
    const most = Math.max(...told.map((moment) => moment.segments.length)); // of all moments: none moves what stands beside
    return { ...told[Math.min(v.moment, told.length - 1)], longest, most, subject: subjectOf(spec, state) };
  },
  describe(spec, r) {
    const [requested, allocated, reserved] = r.counts;
    const parts = spec.parts.map(([, label], i) => [label, r.parts[i]]).filter(([, x]) => x);
    const inside = parts.map(([label, x]) => `${label} ${amount(x, "B")}`).join(", ") || "nothing";
    return `${r.subject ? r.subject + ": " : ""}${r.label}: ${inside} in use; above it ${amount(allocated - requested, "B")} rounded up or not split and `
      + `${amount(reserved - allocated, "B")} kept free; ${amount(reserved, "B")} reserved in ${r.count} segments.`;
  },
  change(spec, a, b, what) {
    return `${what}: ${map.describe(spec, b)}`;
  },
  draw(spec, r, paint) {
    const { longest } = r;
    const [bar, gap, top, room] = [15, 5, 8, paint.width - 16 - paint.measure("1,000.00 GiB")];
    const seen = new Set();
    r.segments.forEach((row, i) => {
      let [x, total] = [8, 0];
      const put = (bytes, look, title) => {
        if (!bytes) return;
        seen.add(look);
        paint.part(x, top + i * (bar + gap), (bytes / longest) * room, bar, look, `${title}${amount(bytes, "B")}`);
        x += (bytes / longest) * room;
      };
      for (const [size, asked, kind, name] of row) {
        const named = name ? `${name}: ` : "";
        put(kind < 0 ? size : asked, kind < 0 ? "cached" : spec.parts[kind][0], kind < 0 ? "free: " : named || `${spec.parts[kind][1]}: `);
        if (kind >= 0) put(size - asked, "unsplit", `${named}rounded up or not split: `);
        total += size;
      }
      paint.text(x + 6, top + i * (bar + gap) + bar / 2, amount(total, "B"), {});
    });
    const bottom = top + r.most * (bar + gap);
    if (r.hidden[0]) paint.text(8, bottom + 8, `and ${r.hidden[0]} smaller segments, ${amount(r.hidden[1], "B")}`, {});
    const looks = [...spec.parts, ["unsplit", "rounded up or not split"], ["cached", "kept free"]];
    return paint.legend(bottom + (r.hidden[0] ? 26 : 8), looks.filter(([look]) => seen.has(look)));
  },
};

// Which of several things holds where, over two letters.
const regions = {
  compute(spec, state) {
    const v = valuesOf(spec, state);
    const run = (more) => {
      const values = valuesOf(spec, state, more);
      const [which, bytes] = [FORMULAS[spec.which](values), FORMULAS[spec.amount](values)];
      if (!(which in spec.regions) || !(bytes >= 0)) throw new Error(`${spec.which}: ${which}, ${bytes} B at ${JSON.stringify(more)}`);
      return { which, bytes };
    };
    const rows = spec.y.values.map((y) => spec.x.values.map((x) => run({ [spec.x.name]: x, [spec.y.name]: y })));
    return { rows, now: run({}), v, capacity: v.capacity, subject: subjectOf(spec, state) };
  },
  count: (r) => r.rows.flat().filter((cell) => cell.which === r.now.which).length,
  instant: (spec, r) => `the peak of ${amount(r.now.bytes, "B")} is in ${spec.regions[r.now.which][1]}`,
  capacity(r) {
    if (r.capacity === undefined) return "";
    const free = r.capacity - r.now.bytes;
    const whole = `the ${amount(r.capacity, "B")} of ${r.v.capacity_label}`;
    return free < 0 ? ` ${amount(-free, "B")} more than ${whole}: it does not fit.` : ` It fits ${whole}.`;
  },
  describe(spec, r) {
    const all = spec.x.values.length * spec.y.values.length;
    return `${r.subject}: ${regions.instant(spec, r)}, as at ${grouped(String(regions.count(r)))} of the ${grouped(String(all))} points of the map.${regions.capacity(r)}`;
  },
  change(spec, a, b, what) {
    const [before, now] = [a, b].map((r) => `${amount(r.now.bytes, "B")} in ${spec.regions[r.now.which][1]}`);
    return `${what}: ${before === now ? `the peak stays ${now}` : `the peak ${before}${ARROW}${now}`}.${regions.capacity(b)}`;
  },
  draw(spec, r, paint) {
    const [xs, ys] = [spec.x.values, spec.y.values];
    const words = (value) => grouped(String(value));
    const [top, bottom, right] = [14, 300, paint.width - 14];
    const left = 14 + Math.max(...ys.map((value) => paint.measure(words(value))));
    // A size stands in the middle of its cell; cells meet halfway, on logarithmic axes.
    const edges = (values) => values.map((value, i) => (i ? Math.sqrt(values[i - 1] * value) : value)).concat(values[values.length - 1]);
    const place = (values, from, to) => (value) => from + (Math.log(value / values[0]) / Math.log(values[values.length - 1] / values[0] || 2)) * (to - from);
    const [x, y] = [place(xs, left, right), place(ys, bottom, top)];
    const [across, up] = [edges(xs).map(x), edges(ys).map(y)];
    const seen = new Set([r.now.which]);
    r.rows.forEach((row, j) => {
      for (let i = 0, start = 0; i < row.length; i++) {
        seen.add(row[i].which);
        if (i + 1 < row.length && row[i + 1].which === row[i].which) continue;
        const [look, label] = spec.regions[row[i].which];
        const corners = [[across[start], up[j]], [across[i + 1], up[j]], [across[i + 1], up[j + 1]], [across[start], up[j + 1]]];
        paint.area(corners.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(" "), look, label);
        start = i + 1;
      }
    });
    if (r.capacity !== undefined) {
      const over = (j, i) => r.rows[j]?.[i] === undefined ? null : r.rows[j][i].bytes > r.capacity;
      r.rows.forEach((row, j) => row.forEach((cell, i) => {
        const differs = (other) => other !== null && other !== over(j, i);
        if (differs(over(j, i + 1))) paint.line(across[i + 1], up[j], across[i + 1], up[j + 1], { class: "everybyte-limit", style: "stroke-dasharray: none; stroke-width: 3" });
        if (differs(over(j + 1, i))) paint.line(across[i], up[j + 1], across[i + 1], up[j + 1], { class: "everybyte-limit", style: "stroke-dasharray: none; stroke-width: 3" });
      }));
    }
    const shown = (values, most) => values.filter((value, i) => i % Math.ceil(values.length / most) === 0);
    for (const value of shown(xs, paint.narrow ? 5 : 9)) paint.text(x(value), bottom + 14, words(value), { anchor: "middle" });
    for (const value of shown(ys, 8)) paint.text(left - 6, y(value), words(value), { anchor: "end" });
    paint.text((left + right) / 2, bottom + 32, `${spec.x.label} (across), ${spec.y.label} (up)`, { anchor: "middle" });
    const inside = (values, value) => Math.min(Math.max(value, values[0]), values[values.length - 1]);
    const at = [x(inside(xs, r.v[spec.x.name])), y(inside(ys, r.v[spec.y.name]))];
    paint.element("circle", { cx: at[0], cy: at[1], r: 7, fill: "#FBFAF6", stroke: "#22252B", "stroke-width": 2.5 });
    if (r.capacity !== undefined) paint.text(left, bottom + 52, `The line: where the peak passes the ${amount(r.capacity, "B")} of ${r.v.capacity_label}`, { room: right - left });
    return paint.legend(bottom + 68, [...seen].sort((a, b) => a - b).map((i) => spec.regions[i]));
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

// Layouts that were priced beforehand: explore/combining.py's.
const front = {
  compute(spec, state) {
    const v = valuesOf(spec, state);
    const key = spec.by.map((name) => v[name]).join(",");
    const run = spec.runs[key];
    if (!run) throw new Error(`run: ${key} is not stored`);
    const points = run.points.map(([name, seconds, bytes]) => ({ name, seconds, bytes, fits: bytes <= run.usable }));
    const best = points.filter((p) => !points.some((o) => o !== p && o.seconds <= p.seconds && o.bytes <= p.bytes && (o.seconds < p.seconds || o.bytes < p.bytes)));
    return { ...run, points, best: best.sort((a, b) => a.seconds - b.seconds), first: points.find((p) => p.fits), subject: subjectOf(spec, state) };
  },
  said: (r) => r.first ? `the fastest that fits is ${r.first.name}: ${fixed(r.first.seconds, 2)} s a step, ${amount(r.first.bytes, "B")} of ${amount(r.usable, "B")}; ${r.binding}` : `none of ${r.tried} layouts fits ${amount(r.usable, "B")}`,
  describe: (spec, r) => `${r.subject}: ${front.said(r)}.`,
  change: (spec, a, b, what) => `${what}: ${front.said(b)}.`,
  draw(spec, r, paint) {
    const [top, bottom, right] = [14, 300, paint.width - 34]; // half of the last label stands beyond
    const lines = 5; // of layouts by name, whether there are as many or not: what is below stays
    const end = bottom + 54 + 18 * lines + 4;
    if (!r.points.length) {
      paint.text(8, top + 12, "Not one layout fits.", {});
      return end + 24;
    }
    const high = paint.end("bytes", 1.05 * Math.max(r.usable, ...r.points.map((p) => p.bytes)), "B");
    const [low, long] = [Math.min(...r.points.map((p) => p.seconds)) * 0.96, Math.max(...r.points.map((p) => p.seconds)) * 1.04];
    const left = 14 + Math.max(...ticks(high).map((value) => paint.measure(tick(value))));
    const x = (seconds) => left + ((seconds - low) / (long - low)) * (right - left);
    const y = (bytes) => bottom - (bytes / high) * (bottom - top);
    for (const value of ticks(high)) {
      paint.line(left, y(value), right, y(value), { class: "everybyte-grid" });
      paint.text(left - 6, y(value), tick(value), { anchor: "end" });
    }
    const every = ticks(long - low, "s").slice(1)[paint.narrow ? 1 : 0] ?? long - low;
    for (let i = Math.ceil(low / every); i * every <= long; i++) paint.text(x(i * every), bottom + 14, tick(i * every, "s"), { anchor: "middle" });
    paint.text((left + right) / 2, bottom + 32, "a step, at the data sheet's rates", { anchor: "middle" });
    paint.line(left, y(r.usable), right, y(r.usable), { class: "everybyte-limit" });
    paint.near(right, y(r.usable) - 9, `usable: ${amount(r.usable, "B")}`, { end: true });
    paint.curve(r.best.map((p) => `${x(p.seconds)},${y(p.bytes)}`).join(" "), spec.looks.activations, "");
    for (const p of r.points) {
      const look = spec.looks[p.fits ? "activations" : "loss"];
      paint.element(p.fits ? "circle" : "rect", p.fits
        ? { cx: x(p.seconds), cy: y(p.bytes), r: 5, fill: look.color, class: "everybyte-mark" }
        : { x: x(p.seconds) - 4, y: y(p.bytes) - 4, width: 8, height: 8, fill: look.color, class: "everybyte-mark" });
    }
    let row = bottom + 54;
    const shown = r.points.filter((p) => p.fits).slice(0, lines);
    shown.forEach((p, i) => {
      paint.text(left, row, `${i + 1}. ${p.name}: ${fixed(p.seconds, 2)} s, ${amount(p.bytes, "B")}`, { bold: i === 0, room: right - left });
      row += 18;
    });
    return paint.legend(end, [["activations", "fits"], ...(r.points.some((p) => !p.fits) ? [["loss", "does not fit"]] : [])]);
  },
};

// A schedule in time, as explore/pipelines.py packs it, and under each GPU's row its bytes meanwhile.
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
    return { rows, end: Math.max(...rows.map(({ turns }) => turns[turns.length - 1].end)) };
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
  flying: (r) => ` At most ${r.now.most} micro-batches are in flight${r.stages > 1 ? ", counted once a stage" : ""}.`,
  lasts: (r) => ` The step lasts ${r.end / r.stages} forwards of a GPU's blocks; each GPU is idle for ${r.waits / r.stages} of them (${fixed((100 * r.waits) / r.end, 1)} %).`,
  describe: (spec, r) => stack.describe(spec, r) + chart.flying(r) + chart.lasts(r),
  change: (spec, a, b, what) => stack.change(spec, a, b, what) + chart.flying(b) + (chart.lasts(a) === chart.lasts(b) ? "" : chart.lasts(b)),
  draw(spec, r, paint) {
    const [bar, under, gap, top, small] = [26, 18, 7, 8, 11 / SIZE];
    const stages = (i) => (r.stages > 1 ? `stages ${i}, ${i + r.rows.length}` : `stage ${i}`);
    const [left, right] = [
      16 + paint.measure(paint.narrow ? "GPU 0" : "stages 0, 00", paint.narrow),
      paint.width - 14 - Math.max(paint.measure("100.00 GiB", true), paint.narrow ? 0 : paint.measure("100 in flight", true)),
    ];
    // In forwards of a GPU's blocks: on this axis a schedule of several stages is as long as one of one.
    const long = paint.end("time", r.end / r.stages);
    const x = (at) => Math.round(100 * (left + (at / r.stages / long) * (right - left))) / 100;
    const high = paint.end("bytes", Math.max(...r.rows.map((row) => row.total)) || 1);
    const lane = bar / r.stages;
    const unit = x(1) - x(0);
    const digits = [1, 2, 3].map((n) => small * paint.measure("0".repeat(n))); // how wide numbers of so many are
    const seen = new Set();
    r.rows.forEach((row, i) => {
      const y = top + i * (bar + under + gap);
      const floor = y + bar + 1 + under;
      const more = { bold: row.current, on: row.current };
      if (row.current) paint.rect(1, y - 4, paint.width - 2, bar + under + 8, { class: "everybyte-current", rx: 4 });
      paint.text(left - 8, paint.narrow ? y + bar / 2 : y + 11, row.label, { anchor: "end", ...more });
      if (!paint.narrow) paint.text(left - 8, y + 31, stages(i), { anchor: "end", on: row.current });
      paint.rect(x(0), y, x(r.end) - x(0), bar, { class: "everybyte-idle" });
      const boxes = {};
      for (const turn of row.turns) {
        seen.add(turn.kind);
        const from = x(turn.start);
        (boxes[turn.kind + turn.lane] ??= []).push(`M${from} ${y + turn.lane * lane}H${x(turn.end)}v${lane}H${from}z`);
      }
      for (const [which, paths] of Object.entries(boxes)) {
        const [look, label] = spec.kinds[which[0]];
        paint.boxes(paths.join(""), look, `${row.label}, stage ${i + Number(which[1]) * r.rows.length}: ${label}`, unit < 4);
      }
      for (const turn of unit < 4 ? [] : row.turns) {
        if (digits[String(turn.batch).length - 1] > x(turn.end) - x(turn.start)) continue;
        const look = spec.looks[spec.kinds[turn.kind][0]];
        const place = { x: (x(turn.start) + x(turn.end)) / 2, y: y + (turn.lane + 0.5) * lane + 0.5, "text-anchor": "middle", "dominant-baseline": "central" };
        const casing = look.hatch ? `; stroke: ${look.color}; stroke-width: 4px; paint-order: stroke` : "";
        paint.element("text", { ...place, style: `font-size: 11px; fill: ${look.ink}${casing}` }).textContent = String(turn.batch);
      }
      const height = (bytes) => (bytes / high) * under;
      const [stands, kept] = row.parts;
      if (stands) paint.part(x(0), floor - height(stands), x(r.end) - x(0), height(stands), spec.parts[0].part, `${row.label}, ${spec.parts[0].label}: ${amount(stands, "B")}`);
      const base = floor - height(stands);
      const levels = Array.from({ length: row.most + 1 }, (_, n) => (base - height((kept * n) / row.most)).toFixed(2));
      const roof = row.flying.map(([at, n], k) => `${x(at)},${levels[n]} ${x(row.flying[k + 1]?.[0] ?? r.end)},${levels[n]}`);
      paint.area(`${x(0)},${base} ${roof.join(" ")} ${x(r.end)},${base}`, spec.parts[1].part, `${row.label}, ${spec.parts[1].label}: ${amount(kept, "B")} at most`);
      paint.line(x(0), floor, x(r.end), floor, { class: "everybyte-grid" });
      if (!paint.narrow) paint.text(right + 6, y + 11, `${row.most} in flight`, { on: row.current });
      paint.text(right + 6, y + 31, amount(row.total, "B"), more);
    });
    const bottom = top + r.rows.length * (bar + under + gap);
    for (const at of ticks(long, "")) paint.text(left + (at / long) * (right - left), bottom + 6, count(at), { anchor: "middle" });
    if (paint.narrow) paint.text(8, bottom + 24, "time, in a GPU's forwards; under each its bytes", { room: paint.width - 8 });
    else paint.text(left, bottom + 24, "time, in forwards of a GPU's blocks; under each GPU its bytes", {});
    const kinds = [...seen].map((kind) => spec.kinds[kind].slice(0, 2)); // as they first run: a stored state sorts keys
    const line = paint.legend(bottom + 40, [...kinds, ["", `idle: ${fixed((100 * r.waits) / r.end, 1)} %`]]);
    return paint.legend(line, spec.parts.map((p, j) => [p.part, `${r.now.label}, ${p.label}: ${amount(r.now.parts[j], "B")}`]));
  },
};

const KINDS = { stack, peak, lines, fitting, ranges, block, timeline, forgetting, map, regions, front, chart };

function describe(spec, state) {
  const kind = KINDS[spec.kind];
  return kind.describe(spec, kind.compute(spec, state));
}

function change(spec, before, state, preset) {
  const kind = KINDS[spec.kind];
  return kind.change(spec, kind.compute(spec, before), kind.compute(spec, state), whatChanged(spec, before, state, preset));
}

export const pure = { FORMULAS, KINDS, amount, change, describe, followed, nearest, snapped, valuesOf };

// ---- the page ---------------------------------------------------------------------------------------------------

const WIDTH = { least: 360, most: 1080, start: 760, narrow: 560 }; // of a picture, in CSS pixels: it is laid out for the room it has
const SIZE = 13; // of its text
const KEYS = "data-lm-suppress-shortcuts"; // JupyterLab leaves the keys to an element that has it
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

let context; // of a canvas on which words are measured

// How wide words are, in the font that the page uses; where there is no canvas, about.
function ruler(element) {
  context ??= document.createElement("canvas").getContext?.("2d");
  if (!context) return (words) => 0.56 * SIZE * words.length;
  // Whoever asks for a style waits for the page's styles: once for a picture, as soon as it stands in the page.
  if (element.isConnected) element.font ??= getComputedStyle(element).fontFamily;
  const family = element.font || "sans-serif";
  return (words, bold = false) => {
    context.font = `${bold ? "bold " : ""}${SIZE}px ${family}`;
    return context.measureText(words).width;
  };
}

function painter(svg, looks, id, width, measure, axes) {
  const put = (name, attributes, ...children) => svg.appendChild(node(name, attributes, ...children));
  const defs = put("defs", {});
  const made = {};
  // The paint of a part: its color under its hatch, made when it is first used.
  const fill = (name) => {
    if (!made[name]) {
      const attributes = { id: `${id}-${name}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" };
      const pattern = defs.appendChild(node("pattern", attributes, node("rect", { width: 8, height: 8, fill: looks[name].color })));
      if (looks[name].hatch) pattern.append(node("path", { d: HATCHES[looks[name].hatch], stroke: "#FBFAF6", "stroke-width": 1.4, fill: "none" }));
    }
    made[name] = `url(#${id}-${name})`;
    return made[name];
  };
  const paint = {
    width,
    measure,
    narrow: width < WIDTH.narrow,
    // The end of an axis from 0, which stays while what is drawn neither leaves it nor leaves most of it empty; of a `unit` with a round end.
    end(name, most, unit) {
      const [step] = unit === undefined ? [most] : ticks(most, unit).slice(1);
      if (!(axes[name] >= most && axes[name] <= 4 * most)) axes[name] = Math.ceil(most / step - 1e-9) * step;
      return axes[name];
    },
    // Both ends of an axis: they part, and come nearer where most of it would be empty.
    span(name, low, high) {
      const [least, most] = axes[name] ?? [low, high];
      const far = [Math.min(least, low), Math.max(most, high)];
      return (axes[name] = far[1] - far[0] > 2 * (high - low) ? [low, high] : far);
    },
    element: put,
    line: (x1, y1, x2, y2, more) => put("line", { x1, y1, x2, y2, ...more }),
    rect: (x, y, width, height, more) => put("rect", { x, y, width: Math.max(width, 0), height, ...more }),
    // `on`: it stands on the band of the row now. `room`: no wider than this; what is cut off, the title says.
    text(x, y, words, { anchor = "start", bold = false, fill, on = false, room = Infinity }) {
      const style = { x, y, "text-anchor": anchor, "dominant-baseline": "central", "font-weight": bold ? "bold" : "normal" };
      let shown = words;
      while (shown.length > 4 && measure(shown, bold) > room) shown = `${shown.slice(0, -2).trimEnd()}\u2026`;
      const placed = put("text", { ...style, ...(fill ? { style: `fill: ${fill}` } : { class: on ? "everybyte-free everybyte-on" : "everybyte-free" }) });
      placed.textContent = shown;
      if (shown !== words) placed.appendChild(node("title", {})).textContent = words;
    },
    // Words beside a point, on the side that has room for them; within the picture in any case.
    near(x, y, words, { gap = 0, end = false, ...more }) {
      const wide = measure(words, more.bold);
      const [after, before] = [x + gap, x - gap - wide];
      const fits = (start) => start >= 2 && start + wide <= width - 2;
      const start = (end ? [before, after] : [after, before]).find(fits) ?? Math.max(2, width - 2 - wide);
      paint.text(start, y, words, { ...more, room: width - 4 });
    },
    // A line in its color over a darker or lighter one of the page's: seen on every background.
    curve(points, look, dash) {
      put("polyline", { points, fill: "none", class: "everybyte-casing", "stroke-width": 5, "stroke-dasharray": dash || "none" });
      put("polyline", { points, fill: "none", stroke: look.color, "stroke-width": 3, "stroke-dasharray": dash || "none" });
    },
    part(x, y, width, height, name, title) {
      const bar = paint.rect(x, y, width, height, { fill: fill(name), class: "everybyte-part" });
      bar.appendChild(node("title", {})).textContent = title;
    },
    // Many boxes of a part, in one path; `thin`: so narrow that a line between them would hide them.
    boxes(d, name, title, thin) {
      const shape = put("path", { d, fill: fill(name), class: "everybyte-part", ...(thin ? { style: "stroke: none" } : {}) });
      shape.appendChild(node("title", {})).textContent = title;
    },
    area(points, name, title) {
      const shape = put("polygon", { points, fill: fill(name), class: "everybyte-part", style: "stroke: none" });
      shape.appendChild(node("title", {})).textContent = title;
    },
    pill(x, y, words, look) {
      const wide = measure(words) + 8;
      if (look.hatch) paint.rect(x - wide / 2, y - 9, wide, 18, { fill: look.color, rx: 4 });
      paint.text(x, y, words, { anchor: "middle", fill: look.ink });
    },
    // Entries are [part, words] or, for curves, [part, words, dash]; "" is where nothing runs.
    legend(y, entries) {
      let [x, line] = [8, y];
      for (const [name, words, dash] of entries) {
        const wide = 32 + measure(words) + 16;
        if (x + wide > width && x > 8) [x, line] = [8, line + 22];
        if (!name) paint.rect(x, line, 24, 14, { class: "everybyte-idle" });
        else if (dash === undefined) paint.part(x, line, 24, 14, name, words);
        else paint.curve(`${x},${line + 7} ${x + 24},${line + 7}`, looks[name], dash);
        paint.text(x + 31, line + 7.5, words, {});
        x += wide;
      }
      return line + 24;
    },
  };
  return paint;
}

// Names, states and keys for the controls around the picture, which ipywidgets leaves without: whether all were there.
function dress(home, spec, model, state, enter) {
  const keep = (element, attributes) => {
    for (const [name, value] of Object.entries(attributes)) if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  };
  const buttons = [...home.querySelectorAll(".widget-toggle-buttons button")];
  buttons.forEach((button, i) => keep(button, { "aria-pressed": String(i === model.get("preset")), [KEYS]: "true" }));
  buttons[0]?.parentElement.setAttribute("role", "group");
  buttons[0]?.parentElement.setAttribute("aria-label", "presets");
  const inputs = [...home.querySelectorAll(".widget-inline-hbox")];
  inputs.forEach((input, i) => {
    const control = spec.controls[i];
    const [handle, readout, label] = [".noUi-handle", ".widget-readout", ".widget-label"].map((name) => input.querySelector(name));
    input.querySelector("select")?.setAttribute(KEYS, "true");
    if (label?.title === "null") label.removeAttribute("title");
    if (!control || !handle) return;
    keep(handle, { "aria-label": control.label, "aria-valuetext": labelOf(control, state[control.name]), [KEYS]: "true" });
    if (!readout) return;
    // Room for the longest that it says: no other words under it, and the slider stays as long as it is.
    if (control.options) readout.style.width = `clamp(5.5em, ${Math.max(...control.options.map((option) => option.label.length)) + 1}ch, 10em)`;
    keep(readout, { role: "textbox", "aria-label": `${control.label}, typed`, [KEYS]: "true" });
    if (control.options && !readout.everybyte) {
      readout.everybyte = true;
      for (const event of ["keydown", "blur"]) readout.addEventListener(event, (e) => enter(e, control, readout), true);
    }
  });
  return buttons.length && inputs.length >= spec.controls.length;
}

// The option nearest to what was typed: the one so called, or of the numbers the nearest.
function nearest(control, typed) {
  const number = (text) => Number.parseFloat(text.replaceAll(",", ""));
  const labels = control.options.map((option) => option.label);
  const said = labels.findIndex((label) => label.toLowerCase() === typed.trim().toLowerCase());
  if (said >= 0 || Number.isNaN(number(typed))) return said;
  const away = labels.map((label) => Math.abs(number(label) - number(typed)));
  const least = Math.min(...away.filter((x) => !Number.isNaN(x)));
  return away.indexOf(least);
}

function render({ model, el }) {
  const spec = model.get("spec");
  const kind = KINDS[spec.kind];
  const root = document.createElement("div");
  root.className = "everybyte-picture";
  const title = document.createElement("div");
  title.className = "everybyte-title";
  const place = document.createElement("div");
  const said = document.createElement("p");
  said.className = "everybyte-sentence";
  said.setAttribute("aria-live", "polite");
  root.append(title, said, place); // the sentence where it is seen, however tall the picture
  el.append(root);
  const id = `everybyte-${Math.random().toString(36).slice(2)}`;
  const traits = Object.fromEntries(spec.controls.map((c) => [c.name, `c_${c.name}`]));
  const read = () => Object.fromEntries(spec.controls.map((c) => [c.name, model.get(traits[c.name])]));
  let before = null; // the last state drawn, and what it gave
  let result = null;
  let preset = "";
  let width = WIDTH.start;
  let axes = {}; // where they end, from picture to picture: they do not move under the reader's hand
  let [tallest, longest] = [0, 0]; // a picture and a sentence leave their room to the next, so that nothing below jumps
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

  function show(now) {
    const svg = node("svg", { role: "img" });
    const height = kind.draw(spec, now, painter(svg, spec.looks, id, width, ruler(root), axes));
    if (height > tallest || (preset && tallest - height >= 80)) tallest = height;
    svg.setAttribute("viewBox", `0 0 ${width} ${tallest}`);
    svg.setAttribute("aria-label", `${spec.title}. ${kind.describe(spec, now)}`);
    place.replaceChildren(svg);
    title.textContent = title.title = [spec.title, now.subject].filter((words) => words).join(": ");
  }

  function say(words) {
    said.textContent = words;
  }

  // Told after a layout, so that a key waits for one and not for two.
  function lengthened() {
    if (said.offsetHeight > longest) said.style.minHeight = `${(longest = said.offsetHeight)}px`;
  }

  // Dresses the controls, again a little later where some are not there yet.
  function attend(state, again = 20) {
    const home = el.closest?.(".everybyte-explorer");
    if (!(home && dress(home, spec, model, state, enter)) && again && el.isConnected) setTimeout(() => attend(read(), again - 1), 250);
  }

  function enter(event, control, readout) {
    if (event.type === "keydown" && event.key !== "Enter") return;
    event.preventDefault();
    event.stopImmediatePropagation();
    const index = nearest(control, readout.textContent);
    if (index >= 0) write({ ...read(), [control.name]: index });
    readout.textContent = labelOf(control, model.get(traits[control.name]));
    if (event.type === "keydown") readout.blur();
  }

  function resized() {
    const wide = Math.round(Math.min(Math.max(root.clientWidth || WIDTH.start, WIDTH.least), WIDTH.most));
    if (wide === width) return;
    width = wide;
    root.font = undefined;
    [axes, tallest, longest] = [{}, 0, 0];
    said.style.minHeight = "";
    if (result) show(result);
    attend(read());
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
      attend(state);
      if (same && result) {
        if (preset) say(`${preset}: as it was. ${kind.describe(spec, result)}`);
        preset = "";
        return;
      }
      const now = kind.compute(spec, state);
      if (preset) axes = {};
      show(now);
      say(result ? kind.change(spec, result, now, whatChanged(spec, before, state, preset)) : kind.describe(spec, now));
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
  const watch = (element, told) => {
    const observer = globalThis.ResizeObserver && new ResizeObserver(told);
    observer?.observe(element);
    return observer;
  };
  const observers = [watch(el, () => { resized(); attend(read()); }), watch(said, lengthened)];
  return () => {
    for (const observer of observers) observer?.disconnect();
    for (const trait of Object.values(traits)) model.off(`change:${trait}`, soon);
    model.off("change:preset", pick);
  };
}

export default { render };
