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
  const [element, row] = [document.createElement(options ? "select" : "input"), document.createElement("label")];
  if (options) element.append(...options.map((option, i) => new Option(option.label, i)));
  else Object.assign(element, { type: "range", min: ends[0], max: ends[1], step });
  const trait = `c_${name}`;
  const shown = () => { element.value = model.get(trait); };
  element.addEventListener("input", () => model.set(trait, Number(element.value)));
  model.on(`change:${trait}`, shown);
  shown();
  row.append(`${label} `, element);
  return row;
}

function presets(spec, model) {
  const row = Object.assign(document.createElement("div"), { className: "widget-toggle-buttons" });
  const home = row.appendChild(document.createElement("div"));
  spec.presets.forEach((preset, i) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: preset.label, className: "widget-toggle-button" });
    button.addEventListener("click", () => model.set("preset", null) ?? model.set("preset", i));
    home.append(button);
  });
  return row;
}

function alone(root, values) {
  const model = new Alone(values);
  const home = root.appendChild(made("div", "explorer"));
  const box = Object.assign(document.createElement("div"), { className: "widget-box" });
  box.append(...ordered(values.spec).map((control) => input(control, model)));
  home.append(...(values.spec.presets.length > 1 ? [presets(values.spec, model)] : []), box);
  new View({ model, el: home.appendChild(document.createElement("div")) }).open();
}
