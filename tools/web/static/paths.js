// A chapter's short path: its question, its pictures, its formula, its explorer, its answer. The rest is folded under its headings,
// and on the long path what the chapter itself marks: second checks, derivations of small terms.

const FOLDED = ["check", "lab", "exercises"];
const kept = keeping("everybyte.path"); // {short: whether}

const headed = (section) => section.querySelector(":scope > :is(h2, h3)");

// The part of a derivation that ends in its formula: where the book calls it so, or the last that has one.
function formula(parts) {
  return parts.find((part) => /the boxed result/i.test(part.textContent)) ?? parts.findLast((part) => part.querySelector(".math, mjx-container, .output.text_latex")) ?? parts.at(-1);
}

const marked = () => [...document.querySelectorAll("div.everybyte-fold")].map((mark) => mark.closest("section"));

function folding() {
  const derivation = document.getElementById("derivation");
  const parts = [...derivation.querySelectorAll(":scope > section")];
  const stays = formula(parts);
  const whole = FOLDED.map((id) => document.getElementById(id)).filter(Boolean);
  return [...parts.filter((part) => part !== stays), ...whole].filter(headed);
}

function fold(section, folded) {
  section.classList.toggle("everybyte-folded", folded);
  section.querySelector(":scope > :is(h2, h3) > .everybyte-unfold").ariaExpanded = String(!folded);
}

function unfolds(section) {
  const heading = headed(section);
  const turn = () => fold(section, !section.classList.contains("everybyte-folded"));
  heading.append(button("", turn, { className: "everybyte-unfold", ariaLabel: `show: ${heading.firstChild.textContent}` }));
}

// A link to what is folded opens it.
function reach(sections) {
  const there = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const within = there ? sections.filter((section) => section.contains(there)) : [];
  for (const section of within) fold(section, false);
  if (within.length) there.scrollIntoView();
}

function paths() {
  const own = marked().filter(headed);
  for (const section of own) {
    section.classList.add("everybyte-apart");
    unfolds(section);
    fold(section, true);
  }
  const short = document.getElementById("the-question") && document.getElementById("derivation") ? folding().filter((s) => !own.includes(s)) : [];
  if (short.length) choosing(short);
  reach([...own, ...short]);
  addEventListener("hashchange", () => reach([...own, ...short]));
}

function choosing(sections) {
  sections.forEach(unfolds);
  const ways = ["the short path", "the whole chapter"].map((words, i) => button(words, () => choose(!i)));
  const choose = (short) => {
    document.documentElement.classList.toggle("everybyte-short", short);
    for (const section of sections) fold(section, short);
    ways.forEach((way, i) => { way.ariaPressed = String(short === !i); });
    kept.keep({ short });
  };
  const said = element("span", "Short: question, pictures, formula, explorer, answer.");
  document.querySelector("article h1").after(made("div", "paths", "", { role: "group", ariaLabel: "how much of this chapter" }, ...ways, said));
  choose(kept.all().short === true);
}

paths();
