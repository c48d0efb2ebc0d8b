// ---- what stands under a pointer: its words beside it, and the state that a press there chooses -----------------
// A picture names its spots as it is drawn: { box: [left, top, right, bottom], lines, state }. touch.js does this for a step in time.

// Words in a box beside a place of a picture, within its width.
function tip(view, x, top, lines, ...marks) {
  const measure = ruler(view.root);
  const wide = Math.max(...lines.map((line) => measure(line))) + 12;
  const left = x + 10 + wide < view.width ? x + 10 : Math.max(2, x - 10 - wide);
  const style = { x: left + 6, "dominant-baseline": "central" };
  const words = lines.map((line, i) => Object.assign(node("text", { ...style, y: top + 12 + 17 * i }), { textContent: line }));
  const box = node("rect", { x: left, y: top, width: wide, height: 8 + 17 * lines.length, rx: 4, class: "everybyte-tip" });
  return node("g", { "aria-hidden": "true" }, ...marks, box, ...words);
}

// The states in which controls give these symbols these values, of the controls that give nothing else.
function standing(spec, values) {
  const state = {};
  for (const [symbol, value] of Object.entries(values)) {
    for (const c of spec.controls) {
      const alone = c.options?.every(({ values: given }) => Object.keys(given).every((name) => name === symbol));
      const index = alone ? c.options.findIndex((option) => option.values[symbol] === value) : -1;
      if (index >= 0) state[c.name] = index;
      else if (!c.options && c.name === symbol) state[c.name] = Math.min(Math.max(value, c.ends[0]), c.ends[1]);
    }
  }
  return state;
}

const isIn = (state, some) => Object.entries(some).every(([name, value]) => state[name] === value);

class Spots {
  over = null;
  constructor(view) { this.view = view; }

  // After each picture: its spots. The listeners stand on what is not replaced.
  take(spots) {
    const { place } = this.view;
    [this.spots, this.over] = [spots, null];
    if (!place.addEventListener) return;
    const turns = this.spots.some((spot) => Object.keys(spot.state).length);
    const said = { role: "group", tabindex: "0", "aria-label": "chart; arrow keys choose another point of it", [KEYS]: "true" };
    for (const [name, value] of Object.entries(turns ? said : {})) place.setAttribute(name, value);
    if (this.listening) return;
    this.listening = true;
    place.addEventListener("pointermove", (event) => (event.buttons && this.pressed ? this.choose(this.under(event)) : this.point(event)));
    place.addEventListener("pointerdown", (event) => {
      this.pressed = true;
      this.point(event);
      this.choose(this.under(event));
    });
    for (const end of ["pointerup", "pointercancel"]) place.addEventListener(end, () => (this.pressed = false));
    place.addEventListener("pointerleave", () => this.clear());
    place.addEventListener("keydown", this.key);
  }

  at({ clientX, clientY }) {
    const box = this.view.place.querySelector("svg").getBoundingClientRect();
    const scale = this.view.width / box.width;
    return [(clientX - box.left) * scale, (clientY - box.top) * scale];
  }

  under(event) {
    const [x, y] = this.at(event);
    return this.spots.find(({ box: [left, top, right, bottom] }) => left <= x && x < right && top <= y && y < bottom);
  }

  // Of what has no spot, the title of its part.
  point(event) {
    const svg = this.view.place.querySelector("svg");
    const lines = this.under(event)?.lines ?? [event.target.closest?.(".everybyte-part")?.querySelector("title")?.textContent].filter((words) => words);
    this.clear();
    if (!svg || !lines.length) return;
    const [x, y] = this.at(event);
    const tall = svg.viewBox.baseVal.height;
    this.over = svg.appendChild(tip(this.view, x, Math.max(2, Math.min(y + 14, tall - 10 - 17 * lines.length)), lines));
  }

  clear() {
    this.over?.remove();
    this.over = null;
  }

  choose(spot) {
    const { view } = this;
    if (spot && Object.keys(spot.state).length && !isIn(view.read(), spot.state)) view.write({ ...view.read(), ...spot.state });
  }

  // The nearest spot that way, from the one that is shown.
  key = (event) => {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!way || event.ctrlKey || event.metaKey || event.altKey) return;
    const those = this.spots.filter((spot) => Object.keys(spot.state).length);
    const middle = ({ box: [left, top, right, bottom] }) => [(left + right) / 2, (top + bottom) / 2];
    const state = this.view.read();
    const here = those.find((spot) => isIn(state, spot.state)) ?? those[0];
    if (!here) return;
    const [x, y] = middle(here);
    const far = (spot) => {
      const [dx, dy] = [middle(spot)[0] - x, middle(spot)[1] - y];
      const along = dx * way[0] + dy * way[1];
      return along > 0.5 ? along + 4 * Math.abs(dx * way[1] + dy * way[0]) : Infinity;
    };
    const next = those.reduce((a, b) => (far(b) < far(a) ? b : a));
    event.preventDefault();
    event.stopImmediatePropagation();
    if (far(next) < Infinity) this.choose(next);
  };
}
