// ---- paint: a picture's boxes, areas, curves and words, as SVG ---------------------------------------------------

const WIDTH = { least: 360, most: 1080, start: 760, narrow: 560 }; // of a picture, in CSS pixels: it is laid out for the room it has
const SIZE = 13; // of its text
const [GRID, LIMIT, MARK] = ["grid", "limit", "mark"].map((name) => ({ class: `everybyte-${name}` }));
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

// The paint of each part: its color under its hatch, made when it is first used.
function filler(looks, id, defs) {
  const made = {};
  return (name) => {
    if (!made[name]) {
      const attributes = { id: `${id}-${name}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" };
      const pattern = defs.appendChild(node("pattern", attributes, node("rect", { width: 8, height: 8, fill: looks[name].color })));
      if (looks[name].hatch) pattern.append(node("path", { d: HATCHES[looks[name].hatch], stroke: "#FBFAF6", "stroke-width": 1.4, fill: "none" }));
    }
    return (made[name] = `url(#${id}-${name})`);
  };
}

class Paint {
  constructor(svg, looks, id, width, measure, axes) {
    Object.assign(this, { svg, looks, width, measure, axes, narrow: width < WIDTH.narrow, spots: [] });
    this.fill = filler(looks, id, this.element("defs", {}));
  }
  element = (name, attributes, ...children) => this.svg.appendChild(node(name, attributes, ...children));
  // What is said where a pointer is within a box, and the state of controls that a press there chooses.
  spot = (box, lines, state = {}) => { this.spots.push({ box, lines, state }); };
  line = (x1, y1, x2, y2, more) => this.element("line", { x1, y1, x2, y2, ...more });
  rect = (x, y, width, height, more) => this.element("rect", { x, y, width: Math.max(width, 0), height, ...more });
  // The end of an axis from 0, which stays while what is drawn neither leaves it nor leaves most of it empty; of a `unit` with a round end.
  end = (name, most, unit) => {
    const [step] = unit === undefined ? [most] : ticks(most, unit).slice(1);
    if (!(this.axes[name] >= most && this.axes[name] <= 4 * most)) this.axes[name] = Math.ceil(most / step - 1e-9) * step;
    return this.axes[name];
  };
  // Both ends of an axis: they part, and come nearer where most of it would be empty.
  span = (name, low, high) => {
    const [least, most] = this.axes[name] ?? [low, high];
    const far = [Math.min(least, low), Math.max(most, high)];
    return (this.axes[name] = far[1] - far[0] > 2 * (high - low) ? [low, high] : far);
  };
  // `on`: it stands on the band of the row now. `room`: no wider than this; what is cut off, the title says.
  text = (x, y, words, { anchor = "start", bold = false, fill, on = false, room = Infinity }) => {
    const style = { x, y, "text-anchor": anchor, "dominant-baseline": "central", "font-weight": bold ? "bold" : "normal" };
    let shown = words;
    while (shown.length > 4 && this.measure(shown, bold) > room) shown = `${shown.slice(0, -2).trimEnd()}\u2026`;
    const placed = this.element("text", { ...style, ...(fill ? { style: `fill: ${fill}` } : { class: on ? "everybyte-free everybyte-on" : "everybyte-free" }) });
    placed.textContent = shown;
    if (shown !== words) this.titled(placed, words);
  };
  // Words beside a point, on the side that has room for them; within the picture in any case.
  near = (x, y, words, { gap = 0, end = false, ...more }) => {
    const wide = this.measure(words, more.bold);
    const [after, before] = [x + gap, x - gap - wide];
    const fits = (start) => start >= 2 && start + wide <= this.width - 2;
    const start = (end ? [before, after] : [after, before]).find(fits) ?? Math.max(2, this.width - 2 - wide);
    this.text(start, y, words, { ...more, room: this.width - 4 });
  };
  // A line in its color over a darker or lighter one of the page's: seen on every background.
  curve = (places, look, dash) => {
    const shape = { points: places.map((place) => place.join(",")).join(" "), fill: "none" };
    this.element("polyline", { ...shape, class: "everybyte-casing", "stroke-width": 5, "stroke-dasharray": dash || "none" });
    this.element("polyline", { ...shape, stroke: look.color, "stroke-width": 3, "stroke-dasharray": dash || "none" });
  };
  titled = (element, title) => { element.appendChild(node("title", {})).textContent = title; };
  shape = (name, attributes, part, title, style) =>
    this.titled(this.element(name, { ...attributes, fill: this.fill(part), class: "everybyte-part", ...(style ? { style } : {}) }), title);
  part = (x, y, width, height, name, title) => this.shape("rect", { x, y, width: Math.max(width, 0), height }, name, title);
  // Many boxes of a part, in one path; `thin`: so narrow that a line between them would hide them.
  boxes = (d, name, title, thin) => this.shape("path", { d }, name, title, thin && "stroke: none");
  area = (points, name, title) => this.shape("polygon", { points }, name, title, "stroke: none");
  pill = (x, y, words, look) => {
    const wide = this.measure(words) + 8;
    if (look.hatch) this.rect(x - wide / 2, y - 9, wide, 18, { fill: look.color, rx: 4 });
    this.text(x, y, words, { anchor: "middle", fill: look.ink });
  };
  // Entries are [part, words] or, for curves, [part, words, dash]; "" is where nothing runs.
  legend = (y, entries) => {
    let [x, line] = [8, y];
    for (const [name, words, dash] of entries) {
      const wide = 32 + this.measure(words) + 16;
      if (x + wide > this.width && x > 8) [x, line] = [8, line + 22];
      if (!name) this.rect(x, line, 24, 14, { class: "everybyte-idle" });
      else if (dash === undefined) this.part(x, line, 24, 14, name, words);
      else this.curve([[x, line + 7], [x + 24, line + 7]], this.looks[name], dash);
      this.text(x + 31, line + 7.5, words, {});
      x += wide;
    }
    return line + 24;
  };
}

