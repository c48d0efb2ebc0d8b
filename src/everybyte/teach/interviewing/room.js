// The interview room: one card at a time, by keys or by touch. What was wrong comes back; what was known is remembered in this browser.

const kept = keeping("everybyte.cards"); // {id: how often it was known, one after another}
const SECONDS = 30;
const BACK = { 1: 3, 2: 10 }; // after so many other cards a card returns, by its grade
const GRADES = { 1: "1 no", 2: "2 nearly", 3: "3 yes" };
const SETS = { "ten minutes": 15, "an evening": Infinity };

// The cards of a sitting: those known least first, in the book's order among themselves; of a dialogue, as it goes.
export function chosen(cards, { part, topic, most }, known) {
  const wanted = cards.map((card, i) => i).filter((i) => (!part || cards[i].part === part) && (!topic || cards[i].topic === topic));
  if (wanted.every((i) => cards[i].dialogue)) return wanted.slice(0, most);
  const often = (i) => known[cards[i].id] ?? 0;
  return wanted.sort((a, b) => often(a) - often(b) || a - b).slice(0, most);
}

// The queue after the first card's grade, and how often that card is known then.
export function graded(queue, grade, known) {
  const [card, ...rest] = queue;
  if (grade === 3) return { queue: rest, known: known + 1 };
  const at = Math.min(BACK[grade], rest.length);
  return { queue: [...rest.slice(0, at), card, ...rest.slice(at)], known: grade === 1 ? 0 : known };
}

function made(name, called = "", words = "", more = {}) {
  return Object.assign(document.createElement(name), { className: called && `everybyte-room-${called}`, textContent: words }, more);
}

function button(words, press, called = "button") {
  const element = made("button", called, words, { type: "button" });
  element.addEventListener("click", press);
  return element;
}

export class Room {
  part = 0;
  topic = "";
  most = SETS["ten minutes"];
  deck = 0;
  open = false;
  right = 0;

  constructor(root, { cards, decks, beside }) {
    Object.assign(this, { root, cards, decks, beside });
    root.tabIndex = 0;
    root.setAttribute("data-lm-suppress-shortcuts", "true");
    root.addEventListener("keydown", this.key);
    this.begin();
  }

  begin() {
    this.queue = chosen(this.cards, this, kept.all());
    [this.all, this.open, this.right] = [this.queue.length, false, 0];
    this.draw();
  }

  choose(changes) {
    Object.assign(this, changes);
    this.begin();
  }

  flip = () => {
    this.open = true;
    this.draw();
  };

  grade(grade) {
    const { id } = this.cards[this.queue[0]];
    const all = kept.all();
    const { queue, known } = graded(this.queue, grade, all[id] ?? 0);
    kept.keep({ ...all, [id]: known });
    [this.queue, this.open, this.right] = [queue, false, this.right + (grade === 3)];
    this.draw();
  }

  key = (event) => {
    if (event.target.matches("select, button") && [" ", "Enter"].includes(event.key)) return;
    const press = event.key === " " || event.key === "Enter" ? () => !this.open && this.queue.length && this.flip()
      : this.open && event.key in GRADES ? () => this.grade(Number(event.key)) : undefined;
    if (!press || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    press();
  };

  draw() {
    this.root.replaceChildren(this.bar(), this.queue.length ? this.card() : this.end());
    this.root.focus?.({ preventScroll: true });
  }

  // Menus and chips: model and GPU, how long, which part, which topic.
  bar() {
    const bar = made("div", "bar");
    const menu = made("select", "menu");
    menu.setAttribute("aria-label", "model and GPU of the numbers");
    menu.append(...this.decks.map(({ label }, i) => Object.assign(document.createElement("option"), { textContent: label, value: i, selected: i === this.deck })));
    menu.addEventListener("change", () => { this.deck = Number(menu.value); this.draw(); });
    const chip = (words, on, press) => {
      const element = button(words, press, "chip");
      element.setAttribute("aria-pressed", String(on));
      return element;
    };
    const parts = new Map(this.cards.map(({ part, dialogue }) => [part, dialogue ? "dialogues" : `part ${part}`]));
    const topics = [...new Set(this.cards.filter((card) => !this.part || card.part === this.part).map((card) => card.topic))];
    const row = (...chips) => bar.appendChild(made("div", "chips")).append(...chips);
    row(menu, ...Object.entries(SETS).map(([words, most]) => chip(words, this.most === most, () => this.choose({ most }))));
    row(chip("all parts", !this.part, () => this.choose({ part: 0, topic: "" })), ...Array.from(parts, ([part, words]) => chip(words, this.part === part, () => this.choose({ part, topic: "" }))));
    if (this.part) row(...topics.map((topic) => chip(topic, this.topic === topic, () => this.choose({ topic: this.topic === topic ? "" : topic }))));
    return bar;
  }

  card() {
    const { part, topic, chapter } = this.cards[this.queue[0]];
    const [question, answer, follow, wrong, why, ...missing] = this.decks[this.deck].texts[this.queue[0]];
    const card = made("article", "card");
    card.append(made("div", "place", `part ${part}, ${topic}; ${this.right} of ${this.all} known`), made("h2", "question", question));
    if (!this.open) {
      card.append(this.ring(), made("p", "how", "Say your answer aloud."), button("show the answer (space)", this.flip));
      return card;
    }
    const said = (label, words) => {
      const line = made("p");
      line.append(made("b", "", `${label} `), words);
      return line;
    };
    card.append(made("p", "answer", answer), said("Follow-up:", follow), said("The usual wrong answer:", `${wrong} ${why}`));
    for (const words of missing) card.append(made("p", "missing", words));
    const source = made("a", "", chapter, { href: `${this.beside}${chapter}` });
    const rests = made("p");
    rests.append("Rests on ", source);
    const grades = made("div", "grades");
    grades.append(made("span", "", "Did you know it? "), ...Object.entries(GRADES).map(([grade, words]) => button(words, () => this.grade(Number(grade)))));
    card.append(rests, grades);
    return card;
  }

  // Thirty seconds, as a ring that empties.
  ring() {
    const place = made("div", "ring");
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", `a ring that empties in ${SECONDS} seconds`);
    place.style.setProperty("--everybyte-seconds", `${SECONDS}s`);
    return place;
  }

  end() {
    const card = made("article", "card");
    card.append(made("h2", "question", this.all ? `All ${this.all} known.` : "No card here."), button("again, those known least first", () => this.begin()));
    return card;
  }
}

export default {
  render({ model, el }) {
    const root = made("div", "root");
    el.append(root);
    new Room(root, model.get("given"));
  },
};
