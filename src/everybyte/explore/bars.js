// ---- the kinds of picture: each has compute, describe, change, draw ---------------------------------------------
// Here those of bars: amounts stacked, what a block's operations keep, the ranges of number formats, segments.

const CURRENT = { class: "everybyte-current", rx: 4 }; // the band of the row now

const stack = {
  compute(spec, state) {
    const control = spec.controls.find((c) => c.name === spec.bars);
    const rows = (control ? control.options : [{ label: "", values: {} }]).map((option, i) => {
      const v = valuesOf(spec, state, control ? option.values : {});
      const { parts, where } = spec.courses ? courses.peak(spec, v) : { parts: spec.parts.map(([, , formula]) => FORMULAS[formula](v)) };
      parts.forEach((x, j) => checked(x, spec.parts[j][2]));
      return { label: option.label, parts, where, total: sum(parts), current: !control || i === state[spec.bars], v };
    });
    const now = rows.find((r) => r.current);
    return { rows, now, capacity: now.v.capacity, subject: subjectOf(spec, state) };
  },
  capacity: (r) => against(r.now.v, r.now.total),
  describe(spec, r) {
    const parts = listed(spec.parts.map(([, label], i) => [label, r.now.parts[i]]), (x) => part(x, spec.unit));
    return `${r.subject}: ${parts}; ${whole(r.now.total, spec.unit)} in all.${stack.capacity(r)}`;
  },
  change(spec, a, b, what) {
    const moved = differing(spec.parts.map(([, label], i) => [label, a.now.parts[i], b.now.parts[i]]), (x) => part(x, spec.unit));
    const total = a.now.total === b.now.total ? `total stays ${whole(b.now.total, spec.unit)}`
      : `total ${part(a.now.total, spec.unit)}${ARROW}${whole(b.now.total, spec.unit)}`;
    return `${what}: ${[...moved, total].join("; ")}.${stack.capacity(b)}`;
  },
  // A bar in words, a line for each part.
  lines: (spec, r, row) => [
    `${row.label || r.subject}: ${whole(row.total, spec.unit)}`,
    ...spec.parts.map(([, label], j) => [label, row.parts[j]]).filter(([, x]) => x).map(([label, x]) => `${label} ${part(x, spec.unit)}`),
  ],
  draw(spec, r, paint) {
    const multi = r.rows.length > 1;
    const above = multi && paint.narrow; // the labels stand above their bars
    const left = multi && !above ? 16 + Math.max(...r.rows.map((x) => paint.measure(x.label, true))) : 8;
    const words = (row) => part(row.total, spec.unit) + (row.total > row.v.capacity ? ", too much" : mayRunOut(row.v, row.total) ? ", may run out" : "");
    const right = paint.width - 14 - Math.max(...r.rows.map((row) => paint.measure(words(row), true)));
    const [bar, gap] = !multi ? [56, 12] : r.rows.length > 8 ? [22, 5] : [28, 12]; // many stand closer: all are seen at once
    const [head, top, rim] = [above ? 20 : 0, 26, Math.min(gap / 2, 5)];
    const longest = Math.max(...r.rows.map((x) => x.total)) || 1;
    const near = r.capacity !== undefined && r.capacity <= 4 * longest;
    const x = scale([left, right], 0, paint.end("bars", Math.max(longest, near ? r.capacity * 1.02 : 0)));
    const place = (i) => top + head + i * (bar + gap + head);
    const bottom = place(r.rows.length) - head;
    if (multi) paint.rect(1, place(r.rows.indexOf(r.now)) - head - rim, paint.width - 2, bar + head + 2 * rim, CURRENT);
    if (near) paint.line(x(r.capacity), top - 8, x(r.capacity), bottom - gap + 8, LIMIT);
    r.rows.forEach((row, i) => {
      const y = place(i);
      const more = { bold: row.current, on: multi && row.current };
      if (above) paint.text(8, y - 11, row.label, more);
      else if (multi) paint.text(left - 8, y + bar / 2, row.label, { anchor: "end", ...more });
      let at = 0;
      row.parts.forEach((value, j) => {
        if (!value) return;
        const [[look, label], text] = [spec.parts[j], part(value, spec.unit)];
        const width = x(at + value) - x(at);
        paint.part(x(at), y, width, bar, look, `${label}: ${text}`);
        if (width > paint.measure(text) + 10) paint.pill(x(at) + width / 2, y + bar / 2, text, spec.looks[look]);
        at += value;
      });
      paint.text(x(at) + 6, y + bar / 2, words(row), more);
      paint.spot([0, y - head - gap / 2, paint.width, y + bar + gap / 2], stack.lines(spec, r, row), multi ? { [spec.bars]: i } : {});
    });
    if (r.capacity !== undefined) {
      const beyond = near ? "" : ", beyond this scale" + ARROW;
      const words = `${r.now.v.capacity_label}: ${amount(r.capacity)}${beyond}`;
      paint.near(near ? x(r.capacity) : paint.width - 2, 9, words, { end: !near || x(r.capacity) > paint.width / 2 });
    }
    // The row now in numbers; what only others have has its name there too.
    return paint.legend(bottom + 6, spec.parts.map(([look, label], j) => [look, label, j]).filter(([, , j]) => r.rows.some((row) => row.parts[j]))
      .map(([look, label, j]) => [look, `${label} ${part(r.now.parts[j], spec.unit)}` + (spec.shares ? ` (${fixed((100 * r.now.parts[j]) / r.now.total, 1)} %)` : "")]));
  },
};

const peak = {
  ...stack,
  describe: (spec, r) => `${stack.describe(spec, r)} The peak is in ${r.now.where}.`,
  change: (spec, a, b, what) => stack.change(spec, a, b, what)
    + (a.now.where === b.now.where ? "" : ` The peak moves from ${a.now.where} to ${b.now.where}.`),
};

const block = {
  compute(spec, state) {
    const v = valuesOf(spec, state);
    const rows = spec.rows.map(([label, kept, note]) => {
      const tensors = kept.map(([name, formula]) => ({ label: name, x: checked(FORMULAS[formula](v), `${label}, ${name}`) }));
      return { label, note, tensors: tensors.filter((t) => t.x), total: sum(tensors.map((t) => t.x)) };
    });
    return { rows, total: sum(rows.map((row) => row.total)), whole: FORMULAS[spec.whole](v), v, subject: subjectOf(spec, state) };
  },
  all: (r) => `${r.v.layers} blocks keep ${amount(r.whole)}.`,
  describe(spec, r) {
    return `${r.subject}, ${batchOf(r.v)}: one block keeps ${amount(r.total)} for backward: ${listed(r.rows.map((row) => [row.label, row.total]), amount)}. ${block.all(r)}`;
  },
  change(spec, a, b, what) {
    const moved = differing(b.rows.map((row, i) => [row.label, a.rows[i].total, row.total]), amount);
    const total = a.total === b.total ? `the block stays at ${amount(b.total)}` : `the block ${amount(a.total)}${ARROW}${amount(b.total)}`;
    return `${what}: ${[...moved, total].join("; ")}. ${block.all(b)}`;
  },
  draw(spec, r, paint) {
    const [stream, name, left, top, bar, gap] = [16, 34, 132, 14, 22, 8];
    const y = (i) => top + i * (bar + gap);
    const longest = paint.end("bars", Math.max(...r.rows.map((row) => row.total)) || 1);
    const x = scale([left, paint.width - (paint.narrow ? 90 : 265)], 0, longest);
    const bottom = y(r.rows.length);
    paint.line(stream, top - 12, stream, bottom, MARK); // the residual stream, which branches leave and join
    r.rows.forEach((row, i) => {
      const middle = y(i) + bar / 2;
      const on = row.tensors.length > 0 || row.note.startsWith("its input");
      if (on) paint.rect(name, y(i), left - name - 10, bar, CURRENT);
      if (row.label === "+") {
        paint.line(stream, middle, name + 8, middle, MARK);
        paint.element("circle", { cx: stream, cy: middle, r: 7, class: "everybyte-operation" });
        paint.text(stream, middle, "+", { anchor: "middle", bold: true });
      } else {
        if (row.label.startsWith("norm")) paint.line(stream, middle, name, middle, MARK);
        paint.text(name + 8, middle, row.label, { bold: row.total > 0, on });
      }
      let at = 0;
      for (const t of row.tensors) {
        const width = x(at + t.x) - x(at);
        paint.part(x(at), y(i), Math.max(width, 2), bar, "activations", `${row.label}, ${t.label}: ${amount(t.x)}`);
        if (width > paint.measure(t.label) + 12) paint.pill(x(at) + width / 2, middle, t.label, spec.looks.activations);
        at += t.x;
      }
      const narrow = row.tensors.filter((t) => x(t.x) - left <= paint.measure(t.label) + 12).map((t) => t.label);
      const list = ` (${narrow.length < row.tensors.length ? "with " : ""}${narrow.join(", ")})`;
      const fits = paint.measure(amount(row.total) + list) < paint.width - x(at) - 10;
      const beside = !narrow.length ? "" : fits ? list : paint.narrow ? "" : list.replace(narrow.join(", "), `${narrow.length} more`);
      const start = row.total ? x(at) + 8 : left;
      paint.text(start, middle, row.total ? amount(row.total) + beside : row.note, { room: paint.width - start });
    });
    paint.text(left, bottom + 8, `one block: ${amount(r.total)}`, { bold: true });
    return bottom + 24;
  },
};

const power = (x) => `2^${short(Number(Math.log2(x).toFixed(3)))}`;
const plain = (x) => (x < 1e6 ? grouped(short(x)) : x.toExponential(2).replace(/\+(\d)$/, "+0$1")); // as Python writes it

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
  const exponent = Math.floor(Math.log2(x));
  return { fate: `rounds it, ${error}`, verdict: `is rounded to ${short(rounded / 2 ** exponent)} \u00d7 2^${exponent}, ${error}` };
}

const ranges = {
  compute(spec, state) {
    const v = valuesOf(spec, state);
    const rows = [[spec.own, {}], ...spec.rows].map(([label, values]) => {
      const row = { label };
      for (const [name, q] of Object.entries(spec.bounds)) row[name] = FORMULAS[q]({ ...v, ...values });
      if (!(row.smallest > 0 && row.smallest <= row.normal && row.normal <= row.largest)) {
        throw new Error(`${row.label}: ${row.smallest}, ${row.normal}, ${row.largest} is not a range`);
      }
      return Object.assign(row, round(2 ** v[spec.mark], row));
    });
    return { rows, now: rows[0], at: v[spec.mark], subject: subjectOf(spec, state) };
  },
  fates(spec, r) {
    const others = r.rows.slice(1).map((row) => `${row.label} ${row.fate}`).join(", ");
    return `a ${spec.thing} of 2^${short(r.at)} ${r.now.verdict}. The others: ${others}.`;
  },
  describe: (spec, r) => `${spec.own} (${r.subject}) spans ${power(r.now.smallest)} to ${plain(r.now.largest)}, steps of ${power(r.now.epsilon)} above 1: `
    + ranges.fates(spec, r),
  change(spec, a, b, what) {
    const moved = a.now.smallest === b.now.smallest && a.now.largest === b.now.largest ? ""
      : `smallest ${power(a.now.smallest)}${ARROW}${power(b.now.smallest)}, largest ${plain(a.now.largest)}${ARROW}${plain(b.now.largest)}; `;
    return `${what}: ${moved}${ranges.fates(spec, b)}`;
  },
  draw(spec, r, paint) {
    const [left, top, bar, gap] = [paint.narrow ? 80 : 96, 30, 24, 14];
    const logs = r.rows.flatMap((row) => [Math.log2(row.smallest), Math.log2(row.largest)]).concat(r.at);
    const x = scale([left + 52, paint.width - 80], ...paint.span("exponents", Math.min(...logs), Math.max(...logs)));
    const bottom = top + r.rows.length * (bar + gap);
    const words = [];
    paint.rect(1, top - 5, paint.width - 2, bar + 10, CURRENT);
    r.rows.forEach((row, i) => {
      const y = top + i * (bar + gap);
      const [a, b, c] = [row.smallest, row.normal, row.largest].map((value) => x(Math.log2(value)));
      if (b > a) paint.part(a, y, b - a, bar, "casts", `${row.label}, subnormal: fewer bits`);
      paint.part(b, y, Math.max(c - b, 1), bar, "parameters", `${row.label}, normal`);
      const on = !i;
      words.push([left - 8, y, row.label, { anchor: "end", bold: on, on }], [a - 4, y, power(row.smallest), { anchor: "end", on }], [c + 4, y, plain(row.largest), { on }]);
    });
    paint.line(x(r.at), top - 10, x(r.at), bottom - gap + 6, LIMIT);
    for (const [at, y, text, more] of words) paint.text(at, y + bar / 2, text, more);
    paint.near(x(r.at), 10, `${spec.thing} 2^${short(r.at)}: ${r.now.fate}`, { end: x(r.at) > paint.width / 2, bold: true });
    return paint.legend(bottom + 4, [["casts", "subnormal: fewer bits"], ["parameters", "normal"]]);
  },
};

// Segments at a moment, each a bar of blocks: [bytes, bytes asked for, part, name]; the part is "" where a block is free.
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
    const inside = listed(spec.parts.map(([p, label]) => [label, r.parts[p]]), amount) || "nothing";
    return `${r.subject ? r.subject + ": " : ""}${r.label}: ${inside} in use; above it ${amount(allocated - requested)} rounded up or not split and `
      + `${amount(reserved - allocated)} kept free; ${amount(reserved)} reserved in ${r.count} segments.`;
  },
  change: (spec, a, b, what) => `${what}: ${map.describe(spec, b)}`,
  draw(spec, r, paint) {
    const [bar, gap, top, room] = [15, 5, 8, paint.width - 16 - paint.measure("1,000.00 GiB")];
    const [seen, labels] = [new Set(), Object.fromEntries(spec.parts)];
    r.segments.forEach((row, i) => {
      let [x, total] = [8, 0];
      const put = (bytes, look, title) => {
        if (!bytes) return;
        seen.add(look);
        paint.part(x, top + i * (bar + gap), (bytes / r.longest) * room, bar, look, `${title}${amount(bytes)}`);
        x += (bytes / r.longest) * room;
      };
      for (const [size, asked, p, name] of row) {
        const named = name ? `${name}: ` : "";
        if (!p) put(size, "cached", "free: ");
        else {
          put(asked, p, named || `${labels[p]}: `);
          put(size - asked, "unsplit", `${named}rounded up or not split: `);
        }
        total += size;
      }
      paint.text(x + 6, top + i * (bar + gap) + bar / 2, amount(total), {});
    });
    const bottom = top + r.most * (bar + gap);
    if (r.hidden[0]) paint.text(8, bottom + 8, `and ${r.hidden[0]} smaller segments, ${amount(r.hidden[1])}`, {});
    const looks = [...spec.parts, ["unsplit", "rounded up or not split"], ["cached", "kept free"]];
    return paint.legend(bottom + (r.hidden[0] ? 26 : 8), looks.filter(([look]) => seen.has(look)));
  },
};
