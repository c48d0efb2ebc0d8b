// ---- a page of its own ------------------------------------------------------------------------------------------
// Its controls, and what stands between them and the picture, where there is no notebook.

class Alone {
  heard = {};
  constructor(values) { this.values = values; }
  get(name) { return this.values[name]; }
  set(name, value) {
    if (this.values[name] === value) return;
    this.values[name] = value;
    for (const told of this.heard[`change:${name}`] ?? []) told();
  }
  on(event, told) { (this.heard[event] ??= []).push(told); }
  off(event, told) { this.heard[event] = (this.heard[event] ?? []).filter((other) => other !== told); }
  save_changes() {}
}

function input({ name, label, options, ends, step }, model) {
  const field = options ? element("select", "", {}, ...options.map((option, i) => new Option(option.label, i)))
    : element("input", "", { type: "range", min: ends[0], max: ends[1], step });
  const trait = `c_${name}`;
  const shown = () => { field.value = model.get(trait); };
  field.addEventListener("input", () => model.set(trait, Number(field.value)));
  model.on(`change:${trait}`, shown);
  shown();
  return element("label", `${label} `, {}, field);
}

function presets(spec, model) {
  const pressed = (i) => () => model.set("preset", null) ?? model.set("preset", i);
  const buttons = spec.presets.map((preset, i) => button(preset.label, pressed(i), { className: "widget-toggle-button" }));
  return element("div", "", { className: "widget-toggle-buttons" }, element("div", "", {}, ...buttons));
}

function alone(root, values) {
  const model = new Alone(values);
  const home = root.appendChild(made("div", "explorer"));
  const box = element("div", "", { className: "widget-box" }, ...ordered(values.spec).map((control) => input(control, model)));
  home.append(...(values.spec.presets.length > 1 ? [presets(values.spec, model)] : []), box);
  new View({ model, el: home.appendChild(element("div")) }).open();
}
