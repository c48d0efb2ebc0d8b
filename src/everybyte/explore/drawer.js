// ---- the drawer: an explorer shows its first controls, and the others where a reader asks for them --------------

const opened = (globalThis.everybyteOpened ??= new Set()); // the explorers whose drawer is open: each picture is a module of its own

// The controls as they stand in the page: the first ones, then those of the drawer.
const ordered = (spec) => [true, false].flatMap((is) => spec.controls.filter((c) => spec.first.includes(c.name) === is));

// What is in the drawer and not as usual, in words. `hidden`: of each of its controls the usual state, null where there is none. What a
// choice sets with it is as usual.
function unseen(spec, state) {
  const usual = Object.assign({ ...spec.hidden }, ...spec.controls.filter((c) => c.options).map((c) => setBy(c, state)));
  const said = spec.controls.filter((c) => c.name in spec.hidden && state[c.name] !== usual[c.name]);
  return said.map((c) => {
    const label = labelOf(c, state[c.name]);
    return label.includes(c.label) ? label : `${c.label} ${label}`;
  }).join(", ");
}

class Drawer {
  constructor({ spec, id }) {
    Object.assign(this, { spec, name: spec.name || spec.title, rows: [], count: spec.controls.length - spec.first.length });
    this.said = made("span", "unseen", "", { id: `${id}-unseen` });
    this.button = button(`more (${this.count})`, () => this.turn(), HELD);
    for (const [name, value] of [[KEYS, "true"], ["aria-describedby", this.said.id]]) this.button.setAttribute(name, value);
    this.row = made("div", "drawer", "", {}, this.button, this.said);
  }

  turn() {
    if (!opened.delete(this.name)) opened.add(this.name);
    this.set();
  }

  set() {
    const open = opened.has(this.name);
    this.button.ariaExpanded = String(open);
    this.said.hidden = open; // the controls say it
    for (const row of this.rows) row.classList.toggle("everybyte-away", !open);
  }

  // Among the controls once all are there, and what it says of them; whether they were.
  attend(home, state) {
    if (!this.count) return true;
    if (!this.row.isConnected) {
      const rows = home.querySelectorAll(":scope > .widget-box > :is(.widget-inline-hbox, label)");
      if (rows.length < this.spec.controls.length) return false;
      this.rows = [...rows].slice(this.spec.first.length);
      this.rows[0].before(this.row);
      this.set();
    }
    const words = unseen(this.spec, state);
    if (this.said.textContent !== words) this.said.textContent = words;
    return true;
  }
}
