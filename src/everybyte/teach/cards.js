// A prediction's two cards, and an exercise's. What the reader says stays in this browser, with a kernel or without: the card with a
// prediction's answer finds the guess there.

const kept = keeping("everybyte.guesses"); // {id: [guess, the words for it, answer]}
const solved = keeping("everybyte.solved"); // {id of an exercise: what was typed and is right}
const TOLD = "everybyte-guess";

function keep(id, ...row) {
  kept.keep({ ...kept.all(), [id]: row });
}

// A written number as a fraction of whole ones, which is exact; undefined where a comma does not group three digits.
function fraction(written, how) {
  const whole = written.split(/[.e]/i)[0];
  if (written.includes(",") && !new RegExp(`^${how.grouped}$`).test(whole)) return undefined;
  const [, sign, left, right = "", power = "0"] = written.replace(/[,_]/g, "").match(/^([-+]?)(\d*)\.?(\d*)(?:e([-+]?\d+))?$/i);
  const tens = Number(power) - right.length;
  const digits = BigInt(left + right) * (sign === "-" ? -1n : 1n);
  return tens < 0 ? [digits, 10n ** BigInt(-tens)] : [digits * 10n ** BigInt(tens), 1n];
}

const below = ([n, d], [m, e]) => n * e < m * d;
const size = ([n, d]) => [n < 0n ? -n : n, d];

// By what is written after it, in bytes or in the unit.
function sized(value, name, { names, plain }) {
  if (!value) return undefined;
  const [n, d] = value;
  if (name === "" && plain) return below(size(value), [BigInt(plain[1]), 1n]) ? [n * BigInt(plain[0]), d] : value;
  return Object.hasOwn(names, name) ? [n * BigInt(names[name]), d] : undefined;
}

// An amount as people write it, a fraction; undefined where it cannot be read. `how`: of teach/quantities.py, whose `read` reads alike.
export function exact(text, how) {
  const number = new RegExp(`^${how.number}`, "i");
  const said = text.trim();
  if (said.length > how.longest) return undefined;
  let rest = said.replace(new RegExp(`^${how.about}`, "i"), "");
  const take = (pattern) => {
    const [found] = rest.match(pattern) ?? [];
    rest = rest.slice(found?.length ?? 0);
    return found;
  };
  const first = take(number);
  const last = take(new RegExp(`^(?:${how.to})`, "i")) === undefined ? first : take(number);
  if (first === undefined || last === undefined) return undefined;
  const name = rest.replace(/\s+/g, "").toLowerCase();
  const [low, high] = [first, last].map((written) => sized(fraction(written, how), name, how));
  if (!low || !high) return undefined;
  const middle = [low[0] * high[1] + high[0] * low[1], 2n * low[1] * high[1]];
  return below([BigInt(how.largest), 1n], size(middle)) ? undefined : middle;
}

// A guess, in bytes where it is of memory; NaN where it cannot be read, or is more than any memory.
export function read(text, { how, most }) {
  const found = exact(text, how);
  const value = found ? Number(found[0]) / Number(found[1]) : NaN;
  return Number.isFinite(value) && (!most || (value >= 0 && value <= most)) ? value : NaN;
}

// [kind, why] of an answer: what the first row says that has the number. As teach/marking.py's rows.
export function mark(text, { how, rows, unit, wanted }) {
  const given = exact(text, how);
  if (!given) return ["unreadable", `This is no number that can be read. It takes ${wanted}.`];
  const bound = (written) => [...written.split("/"), "1"].slice(0, 2).map(BigInt);
  const [, , right, why] = rows.find(([low, high]) => (low === null || !below(given, bound(low))) && (high === null || !below(bound(high), given)));
  return right ? ["right", why] : ["wrong", `You say ${worded(text, unit)}. ${why}`];
}

// What was typed, with the unit where it ends in a number.
function worded(text, unit) {
  const typed = text.trim();
  return /[\d.]$/.test(typed) && unit ? `${typed} ${unit}` : typed;
}

// How far a guess is from the answer, in the words of teach/predictions.py.
export function apart(guess, answer) {
  if (guess === answer) return "exactly";
  if (guess * answer <= 0) return "no factor joins the two";
  const factor = Math.max(guess / answer, answer / guess);
  if (factor <= 1.1) return "within a tenth of it";
  return `${Number(factor.toPrecision(3))} times too ${Math.abs(guess) > Math.abs(answer) ? "much" : "little"}`;
}

// Of the guesses kept that have an answer, how many are within a factor of two.
export function score(all) {
  const told = Object.values(all).filter((row) => row.length > 2);
  const near = told.filter(([guess, , answer]) => guess * answer > 0 && Math.max(guess / answer, answer / guess) <= 2);
  return told.length < 2 ? "" : `Of your ${told.length} guesses so far, ${near.length} were within a factor of two.`;
}

// A field, its button and what is said of it; `done` is called with what was typed.
function entry({ label, placeholder, words, done }) {
  const field = element("input", "", { type: "text", size: 14, maxLength: 60, placeholder, autocomplete: "off", ariaLabel: label });
  field.setAttribute("data-lm-suppress-shortcuts", "true");
  const enter = () => field.value.trim() && done(field.value.trim());
  field.addEventListener("keydown", (event) => event.key === "Enter" && enter());
  return { field, press: button(words, enter), said: made("span", "said", "", { role: "status" }) };
}

function asks({ model, spec, root }) {
  const lock = (typed) => {
    const value = read(typed, spec);
    if (Number.isNaN(value)) {
      said.textContent = `This cannot be read. A guess is such as \u201c20\u201d, \u201c~20 ${spec.unit}\u201d or \u201c15-20 ${spec.unit}\u201d.`;
      return;
    }
    const words = worded(typed, spec.unit);
    keep(spec.id, value, words);
    tell(words);
    model.set("guess", typed);
    model.save_changes();
    window.dispatchEvent(new CustomEvent(TOLD, { detail: spec.id }));
  };
  const { field, press, said } = entry({
    label: `your guess: ${spec.question}`, placeholder: `about \u2026 ${spec.unit}`, words: "lock in my guess", done: lock,
  });
  const tell = (words) => { said.textContent = `You say ${words}. The chapter will answer.`; };
  const before = kept.all()[spec.id];
  if (spec.guess) keep(spec.id, ...spec.guess);
  if (spec.guess || before) tell(spec.guess?.[1] ?? before[1]);
  root.append(element("b", `Prediction ${spec.id}. `), element("span", spec.question), element("br"), field, press, said);
}

// An exercise on a number: its own rows mark the answer where there are some, and else the kernel does.
function marks({ model, spec, root }) {
  const tell = (typed, kind, head, why) => {
    if (kind === "right") solved.keep({ ...solved.all(), [spec.id]: typed });
    root.dataset.verdict = kind;
    said.replaceChildren(element("b", `${head}. `), element("span", why));
  };
  const own = (typed) => {
    const [kind, why] = mark(typed, spec);
    tell(typed, kind, spec.heads[kind], why);
  };
  const told = () => tell(...model.get("verdict"));
  const check = (typed) => {
    if (spec.rows) return own(typed);
    if (model.get("verdict")[0] === typed) return told();
    said.textContent = "Checking \u2026";
    model.set("guess", typed);
    return model.save_changes();
  };
  const { field, press, said } = entry({ label: `your answer to exercise ${spec.id}: ${spec.title}`, placeholder: `\u2026 ${spec.unit}`, words: "check", done: check });
  const hints = made("div", "hints", "", { role: "status" });
  const hint = button("a hint", () => {
    hints.append(element("div", `\u2192 ${spec.hints[hints.childElementCount]}`));
    hint.hidden = hints.childElementCount === spec.hints.length;
  });
  root.append(element("b", `${spec.id}. `), element("span", `${spec.title} `), element("i", `(${[spec.unit && `in ${spec.unit}`, spec.exactness].filter(Boolean).join(", ")})`));
  root.append(element("br"), field, press, hint, said, hints);
  const before = solved.all()[spec.id];
  if (before !== undefined) {
    field.value = before;
    if (spec.rows) own(before);
    else said.textContent = `Solved before, in this browser, with \u201c${before}\u201d.`;
  }
  if (model.get("verdict").length) told();
  model.on("change:verdict", told);
  return () => model.off("change:verdict", told);
}

function answers({ spec, root }) {
  const [value, words] = spec.answer;
  const draw = (asked = false) => {
    const [guess, said] = spec.guess ?? kept.all()[spec.id] ?? [];
    root.replaceChildren(element("b", `Prediction ${spec.id}. `));
    if (guess === undefined && !asked) {
      const screen = made("span", "on-screen", "You have not guessed yet. ", {}, button("show the answer, without a guess", () => draw(true)));
      return root.append(screen, made("span", "on-paper", `The answer is ${words}.`));
    }
    root.append(element("span", guess === undefined ? `The answer is ${words}.` : `You said ${said}. The answer is ${words}: ${apart(guess, value)}.`));
    if (guess === undefined) return undefined;
    keep(spec.id, guess, said, value);
    const most = Math.max(Math.abs(guess), Math.abs(value)) || 1;
    for (const [name, size] of [["guess", guess], ["answer", value]]) {
      const bar = element("i", "", { style: `width: ${Math.max(0.5, (70 * Math.abs(size)) / most)}%` });
      root.append(made("div", `bar everybyte-bar-${name}`, "", {}, bar, element("span", name)));
    }
    return root.append(made("div", "score", score(kept.all())));
  };
  const heard = (event) => event.detail === spec.id && draw();
  window.addEventListener(TOLD, heard);
  draw();
  return () => window.removeEventListener(TOLD, heard);
}

export default {
  render({ model, el }) {
    const spec = model.get("spec");
    const root = el.appendChild(made("div", "guess"));
    return { asks, answers, marks }[spec.kind]({ model, spec, root });
  },
};
