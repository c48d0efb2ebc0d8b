// A prediction's two cards. The guess stays in this browser, where the card with the answer finds it, with a kernel or without.

const kept = keeping("everybyte.guesses"); // {id: [guess, the words for it, answer]}
const TOLD = "everybyte-guess";
const TIMES = { k: 1e3, m: 1e6, b: 1e9 };
const NUMBER = "[-+]?(?:\\d[\\d,_]*(?:\\.\\d*)?|\\.\\d+)(?:e[-+]?\\d{1,3})?";

function keep(id, ...row) {
  kept.keep({ ...kept.all(), [id]: row });
}

// A guess as people write it, in bytes where it is of memory; NaN where it cannot be read. As teach/quantities.py's `guess`.
export function read(text, { unit, units, memory: bytes }) {
  const said = text.trim().replace(/^(?:~|\u2248|about|around|roughly|ca\.?)\s*/i, "");
  const found = said.match(new RegExp(`^(${NUMBER})(?:\\s*(?:-|\u2013|to\\b)\\s*(${NUMBER}))?\\s*(.*)$`, "i"));
  if (!found) return NaN;
  const [, low, high, rest] = found;
  const number = (digits) => Number(digits.replace(/[,_]/g, ""));
  const middle = high === undefined ? number(low) : (number(low) + number(high)) / 2;
  if (!bytes) {
    const [first, after] = [rest[0]?.toLowerCase(), rest.slice(1).trim()];
    const bare = (words) => words.replace(/s$/, "");
    if (bare(rest) === "" || bare(rest) === bare(unit)) return middle;
    return first in TIMES && (after === "" || bare(after) === bare(unit)) ? middle * TIMES[first] : NaN;
  }
  const short = (name) => name.endsWith("iB") && name[0].toLowerCase() === rest.toLowerCase();
  const name = rest === "" ? unit : Object.keys(units).find((u) => u.toLowerCase() === rest.toLowerCase()) ?? Object.keys(units).find(short);
  const value = rest === "" && middle >= 2 ** 20 ? middle : middle * units[name];
  return value >= 0 && value <= 2 ** 60 ? value : NaN;
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

function made(name, words = "", more = {}) {
  return Object.assign(document.createElement(name), { textContent: words }, more);
}

function asks({ model, spec, root }) {
  const field = made("input", "", { type: "text", size: 14, maxLength: 60, placeholder: `about \u2026 ${spec.unit}`, autocomplete: "off" });
  field.setAttribute("aria-label", `your guess: ${spec.question}`);
  field.setAttribute("data-lm-suppress-shortcuts", "true");
  const said = made("span", "", { className: "everybyte-said" });
  said.setAttribute("role", "status");
  const button = made("button", "lock in my guess", { type: "button" });
  const tell = (words) => { said.textContent = `You say ${words}. The chapter will answer.`; };
  const lock = () => {
    const value = read(field.value, spec);
    if (Number.isNaN(value)) {
      said.textContent = `This cannot be read. A guess is such as \u201c20\u201d, \u201c~20 ${spec.unit}\u201d or \u201c15-20 ${spec.unit}\u201d.`;
      return;
    }
    const words = field.value.trim() + (/[a-z]/i.test(field.value.replace(/^(about|around|roughly|ca)/i, "")) || !spec.unit ? "" : ` ${spec.unit}`);
    keep(spec.id, value, words);
    tell(words);
    model.set("guess", field.value.trim());
    model.save_changes();
    window.dispatchEvent(new CustomEvent(TOLD, { detail: spec.id }));
  };
  button.addEventListener("click", lock);
  field.addEventListener("keydown", (event) => event.key === "Enter" && lock());
  const before = kept.all()[spec.id];
  if (spec.guess) keep(spec.id, ...spec.guess);
  if (spec.guess || before) tell(spec.guess?.[1] ?? before[1]);
  root.append(made("b", `Prediction ${spec.id}. `), made("span", spec.question), made("br"), field, button, said);
}

function answers({ spec, root }) {
  const [value, words] = spec.answer;
  const draw = (asked = false) => {
    const [guess, said] = spec.guess ?? kept.all()[spec.id] ?? [];
    root.replaceChildren(made("b", `Prediction ${spec.id}. `));
    if (guess === undefined && !asked) {
      const button = made("button", "show the answer, without a guess", { type: "button" });
      button.addEventListener("click", () => draw(true));
      return root.append(made("span", "You have not guessed yet. "), button);
    }
    root.append(made("span", guess === undefined ? `The answer is ${words}.` : `You said ${said}. The answer is ${words}: ${apart(guess, value)}.`));
    if (guess === undefined) return undefined;
    keep(spec.id, guess, said, value);
    const most = Math.max(Math.abs(guess), Math.abs(value)) || 1;
    for (const [name, size] of [["guess", guess], ["answer", value]]) {
      const bar = made("div", "", { className: `everybyte-bar everybyte-bar-${name}` });
      bar.append(made("i"), made("span", name));
      bar.firstChild.style.width = `${Math.max(0.5, (70 * Math.abs(size)) / most)}%`;
      root.append(bar);
    }
    return root.append(made("div", score(kept.all()), { className: "everybyte-score" }));
  };
  const heard = (event) => event.detail === spec.id && draw();
  window.addEventListener(TOLD, heard);
  draw();
  return () => window.removeEventListener(TOLD, heard);
}

export default {
  render({ model, el }) {
    const spec = model.get("spec");
    const root = made("div", "", { className: "everybyte-guess" });
    el.append(root);
    return (spec.kind === "asks" ? asks : answers)({ model, spec, root });
  },
};
