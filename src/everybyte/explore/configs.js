// A reader's config.json: read as catalog/configs.py reads it, its step added up as a budget adds it up. Nothing leaves the page.
// Python puts before this picture.js and GIVEN: rows and bounds of configurations, courses, what the controls offer.

const ELSEWHERE = "eb.derive(transformers.AutoConfig.from_pretrained(folder), setup), which runs the code itself";
const INSTALLED = "everybyte fit config.json, in a terminal where the book's library is installed";
const LONGEST = 2 ** 20; // of a file, in bytes
const EXACT = 2 ** 50; // beyond, numbers of a browser are not exact

helpers.even = (x, k) => Math.ceil(x / k) * k;

class Refused extends Error {
  constructor(message, instead = ELSEWHERE) {
    super(message);
    this.instead = instead;
  }
}

function shown(value) {
  const said = JSON.stringify(value) ?? "nothing";
  return said.length > 200 ? `${said.slice(0, 200)}\u2026 (${grouped(said.length - 200)} characters more)` : said;
}

// ---- from a configuration to a model, as from_config ------------------------------------------------------------

// Python's equality: true is 1.
const plain = (value) => JSON.stringify(typeof value === "boolean" ? Number(value) : value);

function wholeNumber(owner, field, value, [least, most]) {
  if (Number.isSafeInteger(value) && value >= least && value <= most) return;
  throw new Refused(`${owner}.${field}: ${shown(value)} is not a whole number from ${grouped(least)} to ${grouped(most)}`);
}

function parsed(text) {
  if (text.length > LONGEST) throw new Refused(`config: more than ${grouped(LONGEST)} characters; allowed: as many`, "a config.json, which has some thousands");
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Refused(`config: no JSON, ${error.message}`, "a model's config.json as it lies beside its weights");
  }
}

function modelOf(content) {
  if (content === null || typeof content !== "object" || Array.isArray(content)) throw new Refused(`config: ${shown(content)}; allowed: what a config.json has, fields in braces`);
  const said = Object.fromEntries(Object.entries(content).filter(([, value]) => value !== null));
  const kind = said.model_type;
  if (Object.hasOwn(said, "text_config")) throw new Refused(`config.text_config: ${shown(kind)} has several towers; allowed: a language model's own configuration`);
  if (typeof kind !== "string" || !Object.hasOwn(GIVEN.rows, kind)) throw new Refused(`config.model_type: ${shown(kind)}; allowed: ${Object.keys(GIVEN.rows).join(", ")}`);
  const row = GIVEN.rows[kind];
  const named = (field) => (Object.hasOwn(row.instead, field) ? row.instead[field] : field);
  const config = Object.fromEntries(Object.entries(said).map(([field, value]) => [named(field), value]));
  const none = Object.keys(content).filter((field) => content[field] === null).map(named).filter((field) => Object.hasOwn(row.usual, field) || row.filled.includes(field));
  const unknown = none.find((field) => !row.null.includes(field) && !Object.hasOwn(config, field));
  if (unknown) throw new Refused(`config.${unknown}: null of ${kind}; allowed: a number, or a file that does not say it`);
  check(kind, config, row);
  const model = { ...row.model, ...sizesOf(kind, config, row, none) };
  return checkedModel({ ...model, kind, name: nameOf(config, kind) });
}

function nameOf(config, kind) {
  const name = String(config._name_or_path ?? kind).replace(/\/+$/, "").split("/").at(-1);
  return name.length && name.length <= 60 && !/[\p{C}\p{Zl}\p{Zp}]/u.test(name) ? name : kind;
}

// Refuses a field that is not known to be told, to be a size, or to move no byte.
function check(kind, config, row) {
  if (Object.hasOwn(config, "quantization_config")) throw new Refused("config.quantization_config: weights that are stored in fewer bits; allowed: none, or Setup.quantization");
  const made = config.architectures ?? [];
  if (!Array.isArray(made) || !made.every((one) => typeof one === "string" && GIVEN.ends.some((end) => one.endsWith(end)))) {
    throw new Refused(
      `config.architectures: ${shown(made)} of ${kind}; allowed: a language model's, whose name ends in ${GIVEN.ends.join(" or ")}`,
      "eb.dry_run(a function that makes it, setup, batch=...), which runs that code itself",
    );
  }
  for (const [field, value] of Object.entries(config)) {
    if (Object.hasOwn(row.told, field)) {
      if (row.told[field].some((one) => plain(one) === plain(value))) continue;
      throw new Refused(`config.${field}: ${shown(value)} of ${kind}; allowed: ${row.told[field].map(shown).join(" or ") || "none"}`);
    }
    if (!row.neutral.includes(field) && !Object.hasOwn(row.names, field) && !row.computed.includes(field)) {
      throw new Refused(`config.${field.slice(0, 60)}: ${shown(value)} is not known here to move no byte; allowed: a ${kind} without`);
    }
  }
  const unsaid = row.stated.find((field) => !Object.hasOwn(config, field));
  if (unsaid) throw new Refused(`config.${unsaid}: not said by a ${kind}; allowed: ${shown(row.told[unsaid][0])}, said`);
  for (const rope of ["rope_parameters", "rope_scaling"].flatMap((field) => ropes(config[field]))) {
    const got = (field, other) => (Object.hasOwn(rope, field) ? rope[field] : other);
    const type = got("rope_type", got("type", "default"));
    if (!GIVEN.ropes.includes(type) || Number(got("partial_rotary_factor", 1)) !== 1) {
      throw new Refused(`config.rope_parameters: ${shown(type)}; allowed: ${GIVEN.ropes.join(", ")}, of whole heads`);
    }
  }
}

const isTable = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
function ropes(said) {
  const inside = isTable(said) ? Object.values(said).filter(isTable) : [];
  return inside.length ? inside : isTable(said) ? [said] : [];
}

function sizesOf(kind, config, row, none) {
  const said = {};
  for (const field of new Set([...Object.keys(row.names), ...Object.keys(row.usual)])) {
    said[field] = Object.hasOwn(config, field) ? config[field] : none.includes(field) ? undefined : row.usual[field];
    if (field !== "tie_word_embeddings" && said[field] !== undefined && !Number.isSafeInteger(said[field])) {
      throw new Refused(`config.${field}: ${shown(said[field])} is not a whole number`);
    }
  }
  const sizes = {};
  for (const [theirs, ours] of Object.entries(row.names)) if (said[theirs] !== undefined) sizes[ours] = said[theirs];
  if (said.intermediate_size !== undefined) sizes.ffn_width ??= said.intermediate_size; // of experts alone, too
  if (kind === "deepseek_v3") {
    const groups = said.n_group > 1 ? said.n_group : 0;
    Object.assign(sizes, { head_width: said.qk_nope_head_dim + said.qk_rope_head_dim, expert_groups: groups, groups_per_token: groups ? said.topk_group : 0 });
  }
  return { ...sizes, ...windowOf(kind, config, row, sizes) };
}

// Which layers have the window, by the pattern or the list that the configuration has.
function windowOf(kind, config, row, sizes) {
  let { layers, window = 0 } = sizes;
  if (row.switched && typeof (config.use_sliding_window ?? false) !== "boolean") {
    throw new Refused(`config.use_sliding_window: ${shown(config.use_sliding_window)} is not true or false`);
  }
  if (row.switched && config.use_sliding_window) {
    window = config.sliding_window ?? 4096;
    wholeNumber("config", "sliding_window", window, [1, 2 ** 27]);
    if (!Object.hasOwn(config, "layer_types")) throw new Refused(`config.use_sliding_window: true of ${kind}, in all layers but the first; allowed: layer_types beside it`);
  } else if (config.sliding_window === 0 && Object.hasOwn(sizes, "window")) throw new Refused(`config.sliding_window: 0 of ${kind}; allowed: from 1 on, or null for none`);
  let every = config[row.pattern] ?? row.window_every;
  for (const field of row.patterns) {
    const said = config[field] ?? row.window_every;
    wholeNumber("config", field, said, [0, 2 ** 24]);
    if (field !== row.pattern && window && said !== row.window_every && !Object.hasOwn(config, "layer_types")) {
      throw new Refused(`config.${field}: ${shown(said)} of ${kind}, which its code does not read; allowed: layer_types beside it`);
    }
  }
  const types = config.layer_types;
  if (types !== undefined) {
    const first = Array.isArray(types) ? types.indexOf("full_attention") + 1 : 0;
    every = first > 1 && window ? first : 0;
    const usual = (i) => (!window || (every && (i + 1) % every === 0) ? "full_attention" : "sliding_attention");
    if (!Array.isArray(types) || types.length !== layers || types.some((type, i) => type !== usual(i))) {
      throw new Refused(`config.layer_types: ${shown(types)}; allowed: every so many layers one that attends to all`);
    }
  }
  return { window, full_every: window ? every : 0 };
}

// What a Model checks, and what follows from its other fields.
function checkedModel(model) {
  const m = { ...model };
  const refuse = (field, words) => { throw new Refused(`Model.${field}: ${shown(m[field])} ${words}`); };
  for (const name of ["layers", "width", "heads", "vocabulary", "positions"]) wholeNumber("Model", name, m[name], GIVEN.bounds[name]);
  if (m.head_width === undefined && m.width % m.heads) refuse("heads", `does not divide the width ${m.width}`);
  m.learned_positions ??= m.positions;
  m.kv_heads ??= m.heads;
  m.head_width ??= m.width / m.heads;
  m.ffn_width ??= 4 * m.width;
  m.embedding_width ??= m.width;
  for (const [name, ends] of Object.entries(GIVEN.bounds)) wholeNumber("Model", name, m[name], ends);
  if (typeof m.tied !== "boolean") refuse("tied", "is not true or false");
  if (m.heads % m.kv_heads) refuse("kv_heads", `does not divide the ${m.heads} heads`);
  if (m.learned_positions && !(m.positions > 0 && m.positions <= m.learned_positions)) refuse("positions", "is no length of its table of positions");
  const more = ["experts_per_token", "expert_width", "shared_experts", "dense_layers", "expert_groups", "groups_per_token"];
  for (const field of m.experts ? [] : more) if (m[field]) refuse(field, "needs experts");
  if (m.experts) {
    wholeNumber("Model", "experts_per_token", m.experts_per_token, [1, m.experts]);
    wholeNumber("Model", "expert_width", m.expert_width, [1, 2 ** 24]);
    wholeNumber("Model", "dense_layers", m.dense_layers, [0, m.layers]);
    if (m.expert_groups && (m.experts % m.expert_groups || m.experts / m.expert_groups < 2)) refuse("expert_groups", `of ${m.experts} experts; allowed: divisors that leave two in a group`);
    if (m.expert_groups) wholeNumber("Model", "groups_per_token", m.groups_per_token, [1, m.expert_groups]);
  }
  for (const field of m.latent_rank ? [] : ["query_rank", "rope_width", "value_width"]) if (m[field]) refuse(field, "needs latent_rank");
  if (m.latent_rank) {
    for (const [field, most] of [["query_rank", 2 ** 24], ["rope_width", m.head_width], ["value_width", 2 ** 24]]) wholeNumber("Model", field, m[field], [1, most]);
  }
  if (m.full_every === 1) refuse("full_every", "leaves no layer its window");
  return { ...m, period: m.full_every > 0 && m.full_every <= m.layers ? m.full_every : 1 };
}

// ---- from a model and a setup to bytes --------------------------------------------------------------------------

function parametersOf(model) {
  const v = lettered(model);
  return sum(weightsOf(model).map(([numbers, times]) => FORMULAS[numbers](v) * FORMULAS[times](v)));
}

const weightsOf = (model) => {
  const key = `${model.kind},${Number(model.tied)}`;
  if (!Object.hasOwn(GIVEN.weights, key)) throw new Refused(`config.tie_word_embeddings: ${model.tied} of ${model.kind}; allowed here: ${!model.tied}`, INSTALLED);
  return GIVEN.weights[key];
};

const lettered = (model) => Object.fromEntries(Object.entries(GIVEN.letters).map(([letter, field]) => [letter, model[field]]));

// The values of the letters, and which courses they choose.
function valuesFor(model, setup) {
  wholeNumber("Setup", "batch", setup.batch, GIVEN.limits.batch);
  wholeNumber("Setup", "sequence", setup.sequence, [1, Math.min(model.positions || Infinity, GIVEN.limits.sequence[1])]);
  const step = setup.precision === "bf16" ? 8 : 4; // numbers in 16 bytes of an expert's row
  const ragged = model.experts ? ["width", "expert_width"].find((name) => model[name] % step) : undefined;
  if (ragged) throw new Refused(`Setup.precision: ${shown(setup.precision)} multiplies experts' matrices in rows of 16 bytes, and ${ragged} is ${grouped(model[ragged])}; allowed: multiples of ${step}`);
  if (!model.learned_positions && (model.rope_width || Math.floor((model.head_width * model.rotary_percent) / 100)) % 2) {
    throw new Refused(`Model.head_width: ${grouped(model.head_width)}, of which rotary positions turn pairs of numbers; allowed: those of which an even number turns`);
  }
  const letters = lettered(model);
  const v = { ...model, ...GIVEN.constants[setup.precision], ...letters, B: setup.batch, S: setup.sequence, k: setup.rounding ?? 1, batch: setup.batch, sequence: setup.sequence };
  [v.mixed, v.full] = [Number(setup.precision === "bf16-mixed"), Number(setup.checkpointing === "full")];
  const axes = GIVEN.axes.map(([name]) => Number(FORMULAS[name](v)));
  v.form = [model.kind, ...axes].join(",");
  if (!Object.hasOwn(GIVEN.courses.batches, v.form)) throw new Refused(missing(model.kind, axes), INSTALLED);
  const large = setup.optimizer !== "adamw8bit" ? "" : weightsOf(model).filter(([, , trained]) => trained).map(([numbers]) => Number(FORMULAS[numbers](v) >= GIVEN.quantized)).join("");
  v.update = [model.kind, Number(model.tied), Math.min(model.dense_layers, 4), setup.optimizer, large].join(",");
  if (!Object.hasOwn(GIVEN.courses.updates, v.update)) throw new Refused(`Setup.optimizer: ${setup.optimizer} with weights of these sizes, some in 8 bits and some not, is not stored here`, INSTALLED);
  return v;
}

// Which axis has a value that no stored course of the kind has.
function missing(kind, axes) {
  const stored = Object.keys(GIVEN.courses.batches).map((key) => key.split(",")).filter(([name]) => name === kind).map(([, ...values]) => values.map(Number));
  const i = axes.findIndex((value, at) => !stored.some((values) => values[at] === value));
  if (i < 0) return `config: a ${kind} of this form is not stored here, though each of its features is`;
  const allowed = [...new Set(stored.map((values) => values[i]))].sort((a, b) => a - b);
  if (axes[i] === 1 && String(allowed) === "0") return `${GIVEN.axes[i][1]}: a ${kind} with that is not stored here`;
  return `${GIVEN.axes[i][1]}: ${grouped(axes[i])} of ${kind} is not stored here; stored: ${allowed.map(grouped).join(", ")}`;
}

// The peak of a step: bytes, where, and [part, bytes] of each.
function stepOf(model, setup) {
  const { where, parts } = courses.peak(GIVEN, valuesFor(model, setup));
  const peak = sum(parts);
  if (!(peak < EXACT)) throw new Refused(`the peak: more than ${amount(EXACT)}, which a browser does not count exactly`, INSTALLED);
  return { peak, where, parts: GIVEN.parts.map(([, label, name], i) => [name, label, parts[i]]) };
}

// Whether it fits, each tensor rounded up as CUDA's allocator does; and the largest batch whose peak does.
function fitting(model, setup, gpu) {
  const peakOf = (batch) => stepOf(model, { ...setup, batch, rounding: GIVEN.rounding }).peak;
  return { free: gpu.usable - peakOf(setup.batch), largest: largest(peakOf, gpu.usable, GIVEN.limits.batch[1]) };
}

// ---- the page ---------------------------------------------------------------------------------------------------

class Page {
  constructor(root) {
    const at = (name) => root.querySelector(`#${name}`);
    Object.assign(this, { controls: at("controls"), said: at("said"), text: at("text"), drop: at("drop"), model: null, number: 0 });
    for (const [name, gpu] of Object.entries(GIVEN.gpus)) this.controls.elements.gpu.append(new Option(gpu.title, name, false, name === GIVEN.gpu));
    taking(root, (file) => this.read(file));
    at("example").addEventListener("click", () => { this.text.value = JSON.stringify(GIVEN.example, null, 2); this.take(this.text.value); });
    this.text.addEventListener("input", () => { this.number += 1; if (this.text.value.trim()) this.take(this.text.value); else this.show(); });
    this.controls.addEventListener("input", () => this.answer());
    this.controls.addEventListener("submit", (event) => event.preventDefault());
    this.controls.hidden = true;
  }

  // The text of a file, unless another was given meanwhile.
  async read(file) {
    const number = (this.number += 1);
    let text = "";
    try {
      if (file.size > LONGEST) throw new Refused(`config: ${file.name.slice(0, 60)} has ${amount(file.size)}; allowed: ${amount(LONGEST)} at most`, "a config.json, which has some thousand bytes");
      text = await file.text();
    } catch (error) {
      if (number === this.number) this.refuse(error);
      return;
    }
    if (number !== this.number) return;
    this.text.value = text;
    this.take(text);
  }

  take(text) {
    try {
      this.model = modelOf(parsed(text));
    } catch (error) {
      return this.refuse(error);
    }
    const { sequence } = this.controls.elements;
    const longest = this.model.positions || GIVEN.limits.sequence[1];
    Object.assign(sequence, { max: longest, value: Math.min(Number(sequence.value) || longest, longest) });
    this.answer();
  }

  refuse(error) {
    this.model = null;
    this.show(...this.refusal(error));
  }

  refusal(error) {
    if (!(error instanceof Refused)) return [element("p", `This page could not work it out: ${error.message}`, { role: "alert" })];
    return [element("p", `${error.message}.`, { role: "alert" }), element("p", `What answers instead: ${error.instead}.`)];
  }

  show(...elements) {
    this.controls.hidden = this.model === null;
    this.said.replaceChildren(...elements);
  }

  get setup() {
    const { batch, sequence, precision, optimizer, checkpointing } = this.controls.elements;
    const number = (input) => (input.value.trim() === "" ? null : Number(input.value));
    return { batch: number(batch), sequence: number(sequence), precision: precision.value, optimizer: optimizer.value, checkpointing: checkpointing.value };
  }

  answer() {
    if (!this.model) return;
    const [model, setup, name] = [this.model, this.setup, this.controls.elements.gpu.value];
    const gpu = GIVEN.gpus[name];
    let step, fit, head;
    try {
      head = this.head(model);
      step = stepOf(model, setup);
      fit = fitting(model, setup, gpu);
    } catch (error) {
      return this.show(...(head ?? []), ...this.refusal(error));
    }
    this.show(...head, ...this.verdict(step, fit, gpu), this.table(step), ...this.notes(model, setup, name, fit));
  }

  head(model) {
    return [element("h2", model.name), paragraph("", `A ${model.kind} of ${grouped(model.layers)} layers: `, element("strong", `${grouped(parametersOf(model))} parameters`), ".")];
  }

  verdict({ peak, where }, { free }, gpu) {
    const left = `the ${amount(gpu.usable)} that its driver, CUDA's context and cuBLAS leave for tensors.`;
    const [words, rest] = free >= 0 ? [`It fits the ${gpu.title}:`, ` ${amount(free)} are left of ${left}`]
      : [`It does not fit the ${gpu.title}:`, ` it is ${amount(-free)} more than ${left}`];
    return [
      paragraph("peak", element("strong", amount(peak)), ` at the peak, in ${where}: ${grouped(peak)} bytes`),
      paragraph(free >= 0 ? "fits" : "fails", element("strong", words), rest),
    ];
  }

  table({ peak, parts }) {
    const rows = parts.filter(([, , size]) => size).map(([name, label, bytes]) => {
      const bar = element("div", "", { className: "bar", style: `width: ${(100 * bytes) / peak}%; background: ${GIVEN.colors[name]}` });
      return [label, element("td", "", { className: "share" }, bar), grouped(bytes), `${fixed((100 * bytes) / peak, 1)} %`];
    });
    return tabled("What lives at the peak", ["part", "", "bytes", "share"], rows);
  }

  notes(model, setup, name, { largest }) {
    const batch = largest ? `The largest batch whose peak fits is ${grouped(largest)}.` : "No batch fits: that of one sequence is too large already.";
    const said = Object.entries({ gpu: name, ...setup }).filter(([field]) => field !== "batch").flatMap(([field, value]) => [" ", element("span", `--${field} ${value}`)]);
    const attention = model.softcap || model.sinks ? "eager" : "flash";
    return [
      paragraph("", batch),
      paragraph("", `The step is transformers' code on one GPU, ${attention} attention, no cache, the plain loss. A file's dtype is not read: the precision above decides, and a model that is made in 16 bits keeps its rotary frequencies twice, 2 bytes for each number of a head more. Whether PyTorch's allocator finds room for each tensor is simulated, up to the largest batch, by`),
      element("pre", "everybyte fit config.json", { tabIndex: 0 }, ...said),
    ];
  }
}
