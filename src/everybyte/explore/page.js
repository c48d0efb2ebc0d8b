// ---- the page ---------------------------------------------------------------------------------------------------

const KEYS = "data-lm-suppress-shortcuts"; // JupyterLab leaves the keys to an element that has it

// Names, states and keys for the controls around the picture, which ipywidgets leaves without: whether all were there.
function dress(home, spec, model, state, enter, turn) {
  const keep = (element, attributes) => {
    for (const [name, value] of Object.entries(attributes)) if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  };
  const buttons = [...home.querySelectorAll(".widget-toggle-buttons button")];
  buttons.forEach((button, i) => keep(button, { "aria-pressed": String(i === model.get("preset")), [KEYS]: "true" }));
  buttons[0]?.parentElement.setAttribute("role", "group");
  buttons[0]?.parentElement.setAttribute("aria-label", "presets");
  const [inputs, controls] = [[...home.querySelectorAll(".widget-inline-hbox")], ordered(spec)];
  inputs.forEach((input, i) => {
    const control = controls[i];
    const [handle, readout, label] = [".noUi-handle", ".widget-readout", ".widget-label"].map((name) => input.querySelector(name));
    input.querySelector("select")?.setAttribute(KEYS, "true");
    if (label?.title === "null") label.removeAttribute("title");
    if (!control || !handle) return;
    keep(handle, { "aria-label": control.label, "aria-valuetext": labelOf(control, state[control.name]), [KEYS]: "true" });
    if (turn && control.name === "place" && !handle.everybyte) handle.addEventListener("keydown", turn, (handle.everybyte = true));
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
  return away.indexOf(Math.min(...away.filter((x) => !Number.isNaN(x))));
}

// A chapter's name, from its slug: its number, and its words.
const chapterOf = (slug) => slug.replace(/^(\d+)_(.*)$/, (_, number, words) => `chapter ${number}, ${words.replaceAll("_", " ")}`);

// Where an operation is from, in lines.
const saidOrigin = ([slug, code]) => [code, slug && chapterOf(slug)].filter((words) => words);

// Where a chapter is: beside the notebook in JupyterLab, else where the page's own navigation has it; "" where neither is.
function pathTo(slug) {
  if (!isOurs()) return /\/tree\/(.*\/)?notebooks\/[^/]*$/.test(location.pathname) ? `${slug}.ipynb` : "";
  return document.querySelector?.(`a[href="${slug}.html"], a[href$="/${slug}.html"]`)?.href ?? "";
}

// The same, the chapter a link.
function origin([slug, code]) {
  const path = slug && globalThis.location && pathTo(slug);
  const chapter = made(path ? "a" : "span", "chapter", chapterOf(slug), path && { href: path, target: "_blank", rel: "noopener" });
  const said = made("span", "words", code ? "; derived in " : "Derived in ");
  return [...(code ? [made("code", "code", code)] : []), ...(slug ? [said, chapter] : [])];
}

// A state in words: of each control its name, and its number or its option's label.
function worded(spec, state) {
  return spec.controls.map((c) => [c.name, c.options ? c.options[state[c.name]].label : state[c.name]]);
}

// The call that opens an explorer in a state.
export function callOf(spec, state) {
  return `explore.${spec.name}().at(${worded(spec, state).map(([name, said]) => `${name}=${JSON.stringify(said)}`).join(", ")})`;
}

// The end of a page's address that has a state; and the state that an address has, null where it is of something else.
export function addressOf(spec, state) {
  return `#${spec.name}?${new URLSearchParams(worded(spec, state))}`;
}

export function addressed(spec, address) {
  const [name, said] = address.slice(1).split("?");
  return spec.name && name === spec.name && said !== undefined ? stated(spec, Object.fromEntries(new URLSearchParams(said))) : null;
}

// The state in words, as `worded` has it, as far as there are such controls and options.
function stated(spec, given) {
  const state = {};
  for (const c of spec.controls.filter((control) => Object.hasOwn(given, control.name))) {
    const [words, number] = [given[c.name], Number(given[c.name])];
    const index = c.options?.findIndex((option) => option.label === words);
    if (c.options ? index < 0 : !Number.isFinite(number)) continue;
    state[c.name] = c.options ? index : Math.min(Math.max(number, c.ends[0]), c.ends[1]);
  }
  return state;
}

// Whether the address is the page's to change: in JupyterLab it is not.
const isOurs = () => globalThis.location && !document.body.dataset.jpThemeName;
const REST = 400; // milliseconds after which a state stands in the address

// A picture in a page: it listens to the controls' traits, draws, and says what changed.
class View {
  before = null; // the last state drawn, and what it gave
  result = null;
  preset = "";
  width = WIDTH.start;
  axes = {}; // where they end, from picture to picture: they do not move under the reader's hand
  tallest = 0; // a picture and a sentence leave their room to the next, so that nothing below jumps
  longest = 0;
  waiting = false;
  pressing = false;
  id = `everybyte-${Math.random().toString(36).slice(2)}`;

  constructor({ model, el }) {
    [this.model, this.el, this.spec] = [model, el, model.get("spec")];
    this.kind = KINDS[this.spec.kind];
    [this.root, this.title, this.place, this.said] = [made("div", "picture"), made("div", "title"), element("div"), made("p", "sentence", "", { ariaLive: "polite" })];
    [this.large, this.origin] = [made("div", "large"), made("p", "origin")];
    this.root.append(this.title, ...(this.kind.large ? [this.large] : []), this.said, this.place, ...(this.kind.origin ? [this.origin] : [])); // the sentence where it is seen, however tall the picture
    [this.hand, this.spots, this.held, this.drawer] = [new Hand(this), new Spots(this), new Held(this), new Drawer(this)];
    if (this.kind.hit) {
      const play = button(PLAY, () => this.hand.play(play), { className: "everybyte-play" });
      this.root.append(play);
    }
    this.root.append(this.copier(), this.held.said, this.held.place);
    el.append(this.root);
    this.traits = Object.fromEntries(this.spec.controls.map((c) => [c.name, `c_${c.name}`]));
  }

  // Listens and draws; what it returns ends that.
  open() {
    const heard = [...Object.values(this.traits).map((trait) => [`change:${trait}`, this.soon]), ["change:preset", this.pick]];
    for (const [event, told] of heard) this.model.on(event, told);
    const asked = isOurs() && addressed(this.spec, location.hash);
    const run = this.spec.asked ? {} : this.held.run();
    if (!asked && Object.keys(run).length) this.go("Your run", run);
    if (asked) {
      this.write({ ...this.read(), ...asked });
      setTimeout(() => this.root.scrollIntoView({ block: "center" }));
    }
    this.redraw();
    const watch = (element, told) => {
      const observer = globalThis.ResizeObserver && new ResizeObserver(told);
      observer?.observe(element);
      return observer;
    };
    const deaf = this.held.hear();
    const observers = [watch(this.el, () => { this.resized(); this.attend(this.read()); }), watch(this.said, this.lengthened)];
    return () => {
      deaf();
      for (const observer of observers) observer?.disconnect();
      for (const [event, told] of heard) this.model.off(event, told);
    };
  }

  // What a reader can do with the state. Copied is the call that opens it, or where the address is the page's that address.
  copier() {
    const said = made("code", "call", "", { ariaLive: "polite" });
    const copy = button("copy this state", () => {
      said.textContent = callOf(this.spec, this.read());
      const copied = isOurs() ? location.href.split("#")[0] + addressOf(this.spec, this.read()) : said.textContent;
      navigator.clipboard?.writeText(copied).catch(() => {}); // where a page may not, the words stand there
    }, HELD);
    return made("div", "copier", "", {}, ...(this.spec.name ? [copy] : []), ...this.held.buttons, said);
  }

  // The state in the address, a little after the last change: a step that plays changes it often.
  remember(state) {
    clearTimeout(this.resting);
    if (this.spec.name && isOurs()) this.resting = setTimeout(() => history.replaceState(null, "", addressOf(this.spec, state)), REST);
  }

  read() {
    return Object.fromEntries(this.spec.controls.map((c) => [c.name, this.model.get(this.traits[c.name])]));
  }

  write(state) {
    const now = this.read();
    const moved = this.spec.controls.filter((c) => now[c.name] !== state[c.name]);
    for (const c of moved) this.model.set(this.traits[c.name], state[c.name]);
    if (moved.length) this.model.save_changes();
  }

  // The preset that the state is, the one pressed first; null where it is none.
  press(state) {
    const holds = (preset) => preset && isIn(state, preset.state);
    const now = this.model.get("preset");
    const index = holds(this.spec.presets[now]) ? now : this.spec.presets.findIndex(holds);
    this.pressing = true;
    this.model.set("preset", index < 0 ? null : index);
    this.pressing = false;
    if (this.model.get("preset") !== now) this.model.save_changes();
  }

  pick = () => {
    const chosen = this.spec.presets[this.model.get("preset")];
    if (!this.pressing && chosen) this.go(chosen.label, chosen.state);
  };

  // To a state under a name, which the sentence says.
  go(label, state) {
    this.preset = label;
    this.write({ ...this.read(), ...state });
    this.soon();
  }

  drawn(result, id = this.id) {
    const svg = node("svg", { role: "img", "aria-label": `${this.spec.title}. ${this.kind.describe(this.spec, result)}` });
    const paint = new Paint(svg, this.spec.looks, id, this.width, ruler(this.root), this.axes);
    const height = this.kind.draw(this.spec, result, paint);
    svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    return { svg, height, spots: paint.spots };
  }

  show(now) {
    this.held.show(); // the axes of the picture are wide enough for both
    const { svg, height, spots } = this.drawn(now);
    this.held.show();
    if (height > this.tallest || (this.preset && this.tallest - height >= 80)) this.tallest = height;
    svg.setAttribute("viewBox", `0 0 ${this.width} ${this.tallest}`);
    this.place.replaceChildren(svg);
    if (this.kind.hit) this.hand.take(now);
    else this.spots.take(spots);
    if (this.kind.origin) this.origin.replaceChildren(...origin(this.kind.origin(this.spec, now, now.at)));
    this.title.textContent = this.title.title = [this.spec.title, now.subject].filter((words) => words).join(": ");
  }

  // Told after a layout, so that a key waits for one and not for two.
  lengthened = () => {
    if (this.said.offsetHeight > this.longest) this.said.style.minHeight = `${(this.longest = this.said.offsetHeight)}px`;
  };

  // Dresses the controls and puts the drawer among them, again a little later where some are not there yet.
  attend(state, again = 20) {
    const home = this.el.closest?.(".everybyte-explorer");
    const drawn = home && this.drawer.attend(home, state);
    const dressed = home && dress(home, this.spec, this.model, state, this.enter, this.kind.turned && this.hand.key);
    if (!(drawn && dressed) && again && this.el.isConnected) setTimeout(() => this.attend(this.read(), again - 1), 250);
  }

  enter = (event, control, readout) => {
    if (event.type === "keydown" && event.key !== "Enter") return;
    event.preventDefault();
    event.stopImmediatePropagation();
    const index = nearest(control, readout.textContent);
    if (index >= 0) this.write({ ...this.read(), [control.name]: index });
    readout.textContent = labelOf(control, this.model.get(this.traits[control.name]));
    if (event.type === "keydown") readout.blur();
  };

  resized() {
    const wide = Math.round(Math.min(Math.max(this.root.clientWidth || WIDTH.start, WIDTH.least), WIDTH.most));
    if (wide === this.width) return;
    this.root.font = undefined;
    [this.width, this.axes, this.tallest, this.longest] = [wide, {}, 0, 0];
    this.said.style.minHeight = "";
    if (this.result) this.show(this.result);
    this.attend(this.read());
  }

  soon = () => {
    if (!this.waiting) queueMicrotask(() => this.redraw());
    this.waiting = true;
  };

  redraw() {
    this.waiting = false;
    try {
      this.turned();
    } catch (error) {
      this.place.replaceChildren(made("pre", "error", `This picture could not be drawn. ${error}`, { role: "alert" }));
      this.said.textContent = "";
      this.result = null;
    }
  }

  turned() {
    const { spec, kind, before, result, preset } = this;
    const raw = this.read();
    if (Object.values(raw).some((value) => value === null || value === undefined)) return;
    const state = snapped(spec, preset ? raw : followed(spec, raw, before), before);
    this.write(state);
    this.press(state);
    this.attend(state);
    if (before && result && isIn(before, state)) {
      if (preset) this.said.textContent = `${preset}: as it was. ${kind.describe(spec, result)}`;
      this.preset = "";
      return;
    }
    const now = kind.compute(spec, state);
    if (preset) this.axes = {};
    this.show(now);
    this.said.textContent = result ? kind.change(spec, result, now, whatChanged(spec, before, state, preset))
      : `${preset && `${preset}: `}${kind.describe(spec, now)}`;
    if (kind.large) this.large.replaceChildren(...kind.large(now, result).map((words, i) => made("span", `large-${i}`, words)));
    if (result) this.remember(state);
    [this.before, this.result, this.preset] = [state, now, ""];
    this.held.attend(state);
  }
}

export default { render: (given) => new View(given).open() };
