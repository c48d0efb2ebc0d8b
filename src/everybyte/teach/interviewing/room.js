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

const BUTTON = { className: "everybyte-room-button" };

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
    const bar = made("div", "room-bar");
    const decks = this.decks.map(({ label }, i) => new Option(label, i, false, i === this.deck));
    const menu = made("select", "room-menu", "", { ariaLabel: "model and GPU of the numbers" }, ...decks);
    menu.addEventListener("change", () => { this.deck = Number(menu.value); this.draw(); });
    const chip = (words, on, press) => button(words, press, { className: "everybyte-room-chip", ariaPressed: String(on) });
    const parts = new Map(this.cards.map(({ part, dialogue }) => [part, dialogue ? "dialogues" : `part ${part}`]));
    const topics = [...new Set(this.cards.filter((card) => !this.part || card.part === this.part).map((card) => card.topic))];
    const row = (...chips) => bar.append(made("div", "room-chips", "", {}, ...chips));
    row(menu, ...Object.entries(SETS).map(([words, most]) => chip(words, this.most === most, () => this.choose({ most }))));
    row(chip("all parts", !this.part, () => this.choose({ part: 0, topic: "" })), ...Array.from(parts, ([part, words]) => chip(words, this.part === part, () => this.choose({ part, topic: "" }))));
    if (this.part) row(...topics.map((topic) => chip(topic, this.topic === topic, () => this.choose({ topic: this.topic === topic ? "" : topic }))));
    return bar;
  }

  card() {
    const { part, topic, chapter } = this.cards[this.queue[0]];
    const [question, answer, follow, wrong, why, ...missing] = this.decks[this.deck].texts[this.queue[0]];
    const place = made("div", "room-place", `part ${part}, ${topic}; ${this.right} of ${this.all} known`);
    const card = made("article", "room-card", "", {}, place, made("h2", "room-question", question));
    if (!this.open) {
      card.append(this.ring(), made("p", "room-how", "Say your answer aloud."), button("show the answer (space)", this.flip, BUTTON));
      return card;
    }
    const said = (label, words) => element("p", "", {}, element("b", `${label} `), words);
    card.append(made("p", "room-answer", answer), said("Follow-up:", follow), said("The usual wrong answer:", `${wrong} ${why}`));
    for (const words of missing) card.append(made("p", "room-missing", words));
    card.append(element("p", "Rests on ", {}, element("a", chapter, { href: `${this.beside}${chapter}` })));
    const grades = Object.entries(GRADES).map(([grade, words]) => button(words, () => this.grade(Number(grade)), BUTTON));
    card.append(made("div", "room-grades", "", {}, element("span", "Did you know it? "), ...grades));
    return card;
  }

  // Thirty seconds, as a ring that empties.
  ring() {
    const said = `a ring that empties in ${SECONDS} seconds`;
    return made("div", "room-ring", "", { role: "img", ariaLabel: said, style: `--everybyte-seconds: ${SECONDS}s` });
  }

  end() {
    const said = made("h2", "room-question", this.all ? `All ${this.all} known.` : "No card here.");
    return made("article", "room-card", "", {}, said, button("again, those known least first", () => this.begin(), BUTTON));
  }
}

export default {
  render({ model, el }) {
    new Room(el.appendChild(made("div", "room-root")), model.get("given"));
  },
};
