// As much of a browser's page, and of a widget's model, as a picture touches.

class Element {
  constructor(name) {
    [this.name, this.children, this.attributes, this.textContent] = [name, [], {}, ""];
  }
  setAttribute(key, value) {
    if (value === undefined || Number.isNaN(value) || String(value).includes("NaN")) throw new Error(`${this.name}.${key}: ${value}`);
    this.attributes[key] = String(value);
  }
  append(...children) { this.children.push(...children); }
  appendChild(child) { this.children.push(child); return child; }
  replaceChildren(...children) { this.children = children; }
  set innerHTML(text) { throw new Error(`innerHTML set to ${text}`); }
  all() { return [this, ...this.children.flatMap((c) => c.all())]; }
}

export function page() {
  const document = { createElement: (name) => new Element(name), createElementNS: (_, name) => new Element(name) };
  globalThis.document = document;
  const el = new Element("root");
  return { el, find: (test) => el.all().find(test) };
}

export function widget(values) {
  const listeners = {};
  return {
    values, saved: 0,
    get: (name) => values[name],
    set(name, value) {
      if (values[name] === value) return;
      values[name] = value;
      for (const listener of [...(listeners[`change:${name}`] ?? [])]) listener();
    },
    save_changes() { this.saved += 1; },
    on: (event, listener) => (listeners[event] ??= []).push(listener),
    off: (event, listener) => { listeners[event] = (listeners[event] ?? []).filter((f) => f !== listener); },
    listening: () => Object.values(listeners).flat().length,
  };
}

// Opens a picture, sets traits step by step, and tells after each what the page shows.
export async function play(picture, spec, state, steps) {
  const { el, find } = page();
  const model = widget({ spec, preset: 0, ...Object.fromEntries(Object.entries(state).map(([k, v]) => [`c_${k}`, v])) });
  const close = picture.render({ model, el });
  const seen = [];
  const look = () => {
    const svg = find((e) => e.name === "svg");
    const parts = svg ? svg.all().filter((e) => e.attributes.class === "everybyte-part") : [];
    const [legend, drawn] = [true, false].map((is) => parts.filter((e) => (e.attributes.width === "24" && e.attributes.height === "14") === is)
      .map((e) => e.attributes.fill.match(/-([a-z]+)\)$/)[1]));
    seen.push({
      legend, drawn, height: Number(svg?.attributes.viewBox.split(" ")[3] ?? 0),
      sentence: find((e) => e.className === "everybyte-sentence").textContent,
      title: find((e) => e.className === "everybyte-title").textContent,
      error: find((e) => e.className === "everybyte-error")?.textContent ?? "",
      label: svg?.attributes["aria-label"] ?? "",
      role: svg?.attributes.role ?? "",
      buttons: el.all().filter((e) => e.className === "everybyte-hold" && !e.hidden).map((e) => e.textContent),
      against: find((e) => e.className === "everybyte-against").textContent,
      pictures: el.all().filter((e) => e.name === "svg").length,
      texts: svg ? svg.all().filter((e) => e.name === "text").map((e) => e.textContent) : [],
      bars: parts.length,
      preset: model.values.preset,
      state: Object.fromEntries(spec.controls.map((c) => [c.name, model.values[`c_${c.name}`]])),
    });
  };
  look();
  for (const { press, ...step } of steps) {
    for (const [name, value] of Object.entries(step)) model.set(name, value);
    if (press) find((e) => e.textContent === press && !e.hidden).onclick();
    await Promise.resolve().then(() => {}).then(() => {});
    look();
  }
  close();
  return { seen, listening: model.listening() };
}
