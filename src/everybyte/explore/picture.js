// The picture of an explorer: it evaluates the registry's formulas, draws an SVG and says in words what changed. The files of this
// folder that explorer.py lists are one module, this one first.
// Python puts the formulas, printed as JavaScript, into the object below; nothing is evaluated from text at run time.
const FORMULAS = {/* formulas */};

// What the sizes of a course call.
const helpers = { up: (a, b) => Math.ceil(a / b), whole: (a, b) => Math.round(a / b), down: (a, b) => Math.floor(a / b), least: Math.min, most: Math.max };

const UNITS = { EiB: 2 ** 60, PiB: 2 ** 50, TiB: 2 ** 40, GiB: 2 ** 30, MiB: 2 ** 20, KiB: 2 ** 10 };
const ARROW = " \u2192 ";

// ---- numbers as text, as units.py writes them -------------------------------------------------------------------

function grouped(number) {
  const [whole, ...rest] = String(number).split(".");
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

const short = (x) => String(Number(x.toPrecision(6)));

function count(x) {
  for (const [size, suffix] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(x) >= size || (size > 1e3 && Math.abs(Number(fixed((1000 * x) / size, 1))) >= 1000)) return `${fixed(x / size, 1)} ${suffix}`;
  }
  return short(x);
}

function amount(x, unit = "B") {
  if (unit !== "B") return `${count(x)} ${unit}`.trim();
  const up = (u) => (Math.abs(Number(fixed((1024 * x) / UNITS[u], 2))) >= 1024 && !(u === "KiB" && Number.isInteger(x)));
  const name = Object.keys(UNITS).find((u) => Math.abs(x) >= UNITS[u] || up(u));
  return name ? `${fixed(x / UNITS[name], 2)} ${name}` : Number.isInteger(x) ? `${x} B` : `${fixed(x, 2)} B`;
}

// A part of a sum, and the sum: bytes in the unit that fits; of things the short count, and every digit of the sum.
const part = (x, unit) => (unit === "B" ? amount(x) : count(x));
const whole = (x, unit) => (unit === "B" ? amount(x) : `${grouped(x)} ${unit}`);

const sum = (list) => list.reduce((a, b) => a + b, 0);

// Amounts by label as a sentence has them, and of two states' those that differ.
const listed = (rows, text) => rows.filter(([, x]) => x).map(([label, x]) => `${label} ${text(x)}`).join(", ");
const differing = (rows, text) => rows.filter(([, x, y]) => x !== y).map(([label, x, y]) => `${label} ${text(x)}${ARROW}${text(y)}`);

// Whether so many bytes fit the capacity, where there is one.
function against(v, total) {
  if (v.capacity === undefined) return "";
  const [free, whole] = [v.capacity - total, `the ${amount(v.capacity)} of ${v.capacity_label}`];
  return free < 0 ? ` ${amount(-free)} more than ${whole}: it does not fit.`
    : ` ${fixed((100 * total) / v.capacity, 1)} % of ${whole}; ${amount(free)} are left.${inPieces(v, total)}`;
}

// Whether so many live bytes fit, and do not with what PyTorch's allocator may need: pictures.py's `may_run_out`, and its sentence.
const mayRunOut = (v, total) => total <= v.capacity && v.capacity < total * (1 + (v.margin ?? 0) / 100);
const inPieces = (v, total) => v.margin === undefined ? (v.alone ? ` ${v.alone}` : "") : ` In ${v.simulated} such steps simulated, PyTorch's default allocator needed up to ${v.margin} % more than live bytes: `
  + (mayRunOut(v, total) ? "more than is left, it may run out." : "less than is left.");

// The largest number from 0 up to `most` whose size is no more than the room: `size` grows with the number.
function largest(size, room, most) {
  let [low, high] = [0, 1];
  while (high <= most && size(high) <= room) [low, high] = [high, 2 * high];
  high = Math.min(high, most + 1);
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (size(middle) <= room) low = middle;
    else high = middle;
  }
  return low;
}

// An amount, where it is one.
function checked(x, name) {
  if (!(x >= 0)) throw new Error(`${name}: ${x} is not an amount`);
  return x;
}

// ---- axes -------------------------------------------------------------------------------------------------------

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
  const last = values.at(-1);
  const [first, end] = [Math.ceil(Math.log2(values[0])), Math.floor(Math.log2(last))];
  const step = Math.ceil((end - first) / parts);
  if (log && step > 0) return Array.from({ length: Math.floor((end - first) / step) + 1 }, (_, i) => 2 ** (first + i * step));
  const even = Array.from({ length: parts }, (_, i) => ((i + 1) * last) / parts);
  return even[0] >= values[0] && even.every(Number.isInteger) ? even : [values[0], last];
}

// Where a value of an axis is that goes from `low` to `high`: between two places.
function scale([from, to], low, high, log = false) {
  const share = log ? (value) => Math.log(value / low) / Math.log(high / low || 1) : (value) => (value - low) / (high - low || 1);
  return (value) => from + share(value) * (to - from);
}

// The lines of an upright axis, each with its amount.
function rungs(paint, left, right, y, marks, unit) {
  for (const value of marks) {
    paint.line(left, y(value), right, y(value), GRID);
    paint.text(left - 6, y(value), tick(value, unit), { anchor: "end" });
  }
}

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
  return control.options ? control.options[value].label : grouped(Number(value.toPrecision(12)));
}

// The controls that one moves with it: those of the option now, or the slider's own.
const setBy = (control, state) => (control.options ? control.options[state[control.name]].sets : control.sets);

// A newly chosen option, or a moved slider, moves the controls that it sets.
function followed(spec, state, before) {
  const moved = before ? spec.controls.filter((c) => before[c.name] !== state[c.name]) : [];
  return Object.assign({ ...state }, ...moved.map((c) => setBy(c, state)));
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
  return [...words, ...spec.also.map((name) => `${name} ${grouped(v[name])}`)].join(", ");
}

// Which of the controls that a choice sets have moved since.
function apart(spec, control, state) {
  const sets = control.options ? setBy(control, state) : {};
  const moved = spec.controls.filter((c) => c.name in sets && state[c.name] !== sets[c.name]);
  return moved.length ? ` with ${moved.map((c) => `${c.label} ${labelOf(c, state[c.name])}`).join(" and ")}` : "";
}

// A step's size.
const batchOf = (v) => `batch ${grouped(v.batch)}, sequence ${grouped(v.sequence)}`;

function whatChanged(spec, before, state, preset) {
  if (preset) return preset;
  const moved = spec.controls.filter((c) => before[c.name] !== state[c.name]);
  const set = moved.flatMap((c) => Object.keys(setBy(c, state)));
  const said = moved.filter((c) => !set.includes(c.name));
  const words = said.map((c) => `${c.label} ${labelOf(c, before[c.name])}${ARROW}${labelOf(c, state[c.name])}`).join(", ");
  return words.slice(0, 1).toUpperCase() + words.slice(1);
}

// ---- courses: a step's operations, added up as courses.py does --------------------------------------------------

const courses = {
  // The step that the values choose: bytes of each size, live bytes by part between steps, and its operations.
  chosen({ courses: c }, v) {
    const found = {};
    const size = (i) => (found[i] ??= checked(FORMULAS[c.sizes[i]](v), c.sizes[i]));
    const [live, items] = [{}, []];
    for (const [cases, by] of [[c.batches, c.by], [c.updates, c.update_by]]) {
      const key = by.map((name) => v[name]).join(",");
      if (!(key in cases)) throw new Error(`no step for ${by.map((name) => `${name} ${v[name]}`).join(", ")}`);
      const [rest, more] = c.steps[cases[key]];
      courses.take(live, rest, size, 1);
      items.push(...more);
    }
    return { size, live, items };
  },
  take(live, pieces, size, sign) {
    for (const [p, i] of pieces) live[p] = (live[p] ?? 0) + sign * size(i);
  },
  // Visits each operation while `live` is as it runs: every turn of what repeats; without `turns` the first and the last.
  walk(c, items, live, size, visit, turns) {
    for (const item of items) {
      if (typeof item === "number") {
        for (const o of c.bodies[item][0]) {
          courses.take(live, c.operations[o][3], size, 1);
          visit(c.operations[o], c.bodies[item], turns, o);
          courses.take(live, c.operations[o][4], size, -1);
        }
        continue;
      }
      const [i, down, loop, inner] = item;
      const [times, before] = [size(i), { ...live }];
      const run = (more) => courses.walk(c, inner, live, size, visit, more);
      if (turns) {
        for (let turn = 0; turn < times; turn++) run({ ...turns, [loop]: down ? times - 1 - turn : turn });
        continue;
      }
      if (times > 0) run();
      if (times > 1) {
        for (const p of Object.keys(live)) live[p] += (live[p] - (before[p] ?? 0)) * (times - 2);
        run();
      }
    }
  },
  // Where the most bytes live first, and how many of each part.
  peak(spec, v) {
    const { size, live, items } = courses.chosen(spec, v);
    let [top, where, parts] = [0, "", {}];
    courses.walk(spec.courses, items, live, size, ([, place, , taken]) => {
      const total = taken.length ? sum(Object.values(live)) : 0;
      if (total > top) [top, where, parts] = [total, place, { ...live }];
    });
    return { where, parts: spec.parts.map(([, , name]) => parts[name] ?? 0) };
  },
  // Every operation that takes something: [name, place, owner, or its block or 0, its number in the table], live bytes by part, and where each phase ends.
  unrolled(spec, v) {
    const c = spec.courses;
    const { size, live, items } = courses.chosen(spec, v);
    const [ops, course, marks] = [[["rest", "rest", 0]], [{ ...live }], { rest: 0 }];
    courses.walk(c, items, live, size, ([name, place, owner, taken], [, ...numbers], turns, o) => {
      const mark = c.marks.includes(name);
      if (mark) marks[name] = ops.length;
      if (!mark && !taken.length) return;
      const [block, segment] = numbers.map(([index, after], k) => index + (after === null ? turns[k ? "segment" : "block"] ?? 0 : size(after) - 1));
      ops.push([name, place, owner.startsWith("blocks.") ? (block < 0 ? v.layers : block + segment * (v.segment ?? 1) + 1) : 0, o]);
      course.push({ ...live });
    }, {});
    ops.push(["rest", "rest", 0]);
    course.push(course[0]);
    return { ops, course, marks };
  },
};
