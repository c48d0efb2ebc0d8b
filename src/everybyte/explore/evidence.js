// A reader's memory snapshot or error, dropped into the page. Its worker's Python reads it; here it is drawn and moved through.
// Python puts before this picture.js, paint.js, dropping.js, MOST, and LOOKS: the looks and labels of the parts of memory.

const INSTEAD = "everybyte doctor FILE, in a terminal where the book's library is installed, answers the same";

class Asker {
  constructor(source, progress) {
    [this.number, this.waits] = [0, {}];
    try {
      this.worker = new Worker(source, { type: "module" });
    } catch {
      return; // a page from a disk has no workers
    }
    this.worker.onerror = () => this.every({ missing: "its worker did not start" });
    this.worker.onmessage = ({ data }) => {
      if (data.read) progress(data.read, data.of);
      else { this.waits[data.number]?.(data); delete this.waits[data.number]; }
    };
  }

  every(told) {
    for (const wait of Object.values(this.waits)) wait(told);
    this.waits = {};
  }

  async ask(ask, more) {
    const number = (this.number += 1);
    if (!this.worker) throw new Missing("this browser starts no worker for it");
    const told = await new Promise((wait) => { this.waits[number] = wait; this.worker.postMessage({ number, ask, ...more }); });
    if (told.missing) throw new Missing(told.missing);
    if (told.refused) throw new Error(told.refused);
    return told.found;
  }
}

class Missing extends Error {}

const inside = (x, low, high) => Math.min(high, Math.max(low, x));

// The curve of live bytes, by part: which place is which event, and what is drawn.
const history = {
  top: (r) => Math.max(...r.events.map((_, i) => sum(Object.values(r.parts).map((bytes) => bytes[i])))),
  nearest(r, event) {
    let best = 0;
    r.events.forEach((at, i) => { if (Math.abs(at - event) < Math.abs(r.events[best] - event)) best = i; });
    return best;
  },
  // Half or twice the range, around an event; never outside of the history.
  zoomed({ first, last }, event, factor, events) {
    const wide = inside(Math.round((last - first) * factor), Math.min(40, events), events);
    const from = inside(Math.round(event - wide / 2), 0, events - wide);
    return { first: from, last: from + wide };
  },
  order: (r) => Object.keys(LOOKS).filter((name) => r.parts[name]).concat(Object.keys(r.parts).filter((name) => !LOOKS[name])),
  draw(r, event, paint) {
    const [top, bottom, right] = [14, 300, paint.width - 12];
    const most = paint.end("bytes", history.top(r), "B");
    const marks = ticks(most);
    const left = 14 + Math.max(...marks.map((value) => paint.measure(tick(value))));
    const [x, y] = [(i) => left + ((right - left) * (i + 0.5)) / r.events.length, scale([bottom, top], 0, most)];
    rungs(paint, left, right, y, marks, "B");
    let below = r.events.map(() => 0);
    for (const name of history.order(r)) {
      const above = below.map((size, i) => size + r.parts[name][i]);
      const [up, down] = [above, below].map((sizes) => sizes.map((size, i) => `${x(i)},${y(size)}`));
      paint.area([...up, ...down.reverse()].join(" "), LOOKS[name] ? name : "other", LOOKS[name]?.label ?? name);
      below = above;
    }
    const at = x(history.nearest(r, event));
    paint.line(at, top, at, bottom, { class: "everybyte-mark" });
    paint.text(left, bottom + 16, `event ${grouped(r.events[0])}`, {});
    paint.text(right, bottom + 16, grouped(r.events.at(-1)), { anchor: "end" });
    return { height: paint.legend(bottom + 34, history.order(r).map((name) => [LOOKS[name] ? name : "other", LOOKS[name]?.label ?? name])), left, right };
  },
};

class Page {
  constructor(root) {
    const at = (id) => root.querySelector(`#${id}`);
    [this.said, this.status, this.number] = [at("said"), at("status"), 0];
    this.asker = new Asker(new URL("evidence.worker.js", document.baseURI), (read, of) => this.tell(`Reading: ${amount(read)} of ${amount(of)}.`));
    taking(root, (file) => this.take(file));
    at("read").addEventListener("click", () => this.take(new Blob([at("text").value])));
    addEventListener("resize", () => this.shown && this.draw());
  }

  tell(words) { this.status.textContent = words; }

  refuse(error) {
    this.shown = null;
    this.tell("");
    const words = error instanceof Missing ? `This page's Python did not start (${error.message}): it is in the edition that is served over http with JupyterLite.` : `${error.message}.`;
    this.said.replaceChildren(element("p", words, { role: "alert" }), element("p", `What answers instead: ${INSTEAD}.`));
  }

  async take(file) {
    const number = (this.number += 1);
    this.said.replaceChildren();
    this.shown = null;
    if (file.size > MOST) return this.refuse(new Error(`The file has ${amount(file.size)}; allowed: ${amount(MOST)} at most`));
    if (!file.size) return this.refuse(new Error("Nothing was given; allowed: a memory snapshot, or the text of an error"));
    if (await configured(file)) {
      return this.said.replaceChildren(paragraph("", "This is a model's configuration: ", element("a", "does it fit?", { href: "config.html" })));
    }
    this.tell("Python starts in this page; the first time takes some seconds.");
    let found;
    try {
      found = await this.asker.ask("read", { file });
    } catch (error) {
      return number === this.number && this.refuse(error);
    }
    if (number !== this.number) return;
    this.tell("");
    this.said.innerHTML = found.html; // the library's own tables, in which every text of the file is escaped
    if (found.devices.length) this.open(found);
  }

  open({ devices, main }) {
    const choice = element("select", "", { ariaLabel: "GPU" });
    const figure = element("div", "", { className: "everybyte-picture" });
    for (const each of devices) choice.append(new Option(`GPU ${each.device}: ${amount(each.peak)} at its peak, ${grouped(each.events)} events`, each.device, false, each.device === main));
    choice.addEventListener("change", () => this.choose(devices.find((each) => String(each.device) === choice.value)));
    this.place = element("div", "", { tabIndex: 0, role: "slider", ariaLabel: "moment of the history", ariaValueMin: 0 });
    this.place.addEventListener("keydown", (event) => this.key(event));
    for (const event of ["pointerdown", "pointermove"]) this.place.addEventListener(event, (e) => this.point(e));
    [this.moment, this.buttons, this.owners] = [element("p"), paragraph("ranges"), element("div", "", { className: "owners" })];
    const press = (words, act) => element("button", words, { type: "button", onclick: act });
    this.buttons.append(press("nearer", () => this.zoom(0.5)), press("farther", () => this.zoom(2)), press("the whole history", () => this.range(0, this.device.events)),
      press("the peak", () => this.go(this.device.peak_event)), press("where it died", () => this.go(this.device.died)));
    figure.append(this.place, this.moment, this.buttons);
    this.said.append(element("h2", "What lived, and which line asked for it"), ...(devices.length > 1 ? [choice] : []), figure, this.owners);
    this.choose(devices.find((each) => each.device === main));
  }

  choose(device) {
    Object.assign(this, { device, shown: null, axes: {}, first: 0, last: device.events, event: device.died ?? device.peak_event });
    this.buttons.lastChild.hidden = device.died === null;
    this.place.ariaValueMax = device.events;
    this.range(0, device.events);
  }

  async range(first, last) {
    const [number, columns] = [this.number, inside(Math.round(this.place.clientWidth / 2) || 300, 60, 500)];
    const asked = (this.asked = {});
    const shown = await this.asker.ask("crests", { device: this.device.device, first, last, columns });
    if (number !== this.number || asked !== this.asked) return;
    Object.assign(this, { first, last, shown });
    this.go(this.event);
  }

  zoom(factor) {
    const { first, last } = history.zoomed(this, this.event, factor, this.device.events);
    this.range(first, last);
  }

  async go(event) {
    this.event = event;
    if (event < this.first || event > this.last) return this.range(0, this.device.events);
    if (!this.shown) return; // the curve is on its way, and comes to this event
    this.draw();
    clearTimeout(this.soon);
    this.soon = setTimeout(() => this.ask(event), 60);
  }

  async ask(event) {
    const [number, found] = [this.number, await this.asker.ask("moment", { device: this.device.device, event })];
    if (number !== this.number || event !== this.event) return;
    const { died, peak_event: peak } = this.device;
    const named = event === died ? " (where it died)" : event === peak ? " (the peak)" : "";
    const words = `After event ${grouped(event)}${named}: ${amount(found.live)} live, ${amount(found.reserved)} reserved.`;
    this.moment.textContent = words;
    this.place.ariaValueText = words;
    const caption = found.more ? `The ${grouped(found.rows.length)} largest lines; ${grouped(found.more)} more hold less` : "Who holds it";
    const rows = found.rows.map(([where, name, blocks, size]) => [where, LOOKS[name]?.label ?? name, grouped(blocks), amount(size)]);
    this.owners.replaceChildren(tabled(caption, ["asked for in", "part", "blocks", "size"], rows));
  }

  draw() {
    const svg = node("svg", { role: "img", "aria-label": `Live bytes by part, events ${grouped(this.first)} to ${grouped(this.last)}, at most ${amount(history.top(this.shown))}` });
    const wide = inside(this.place.clientWidth || WIDTH.start, WIDTH.least, WIDTH.most);
    const { height, left, right } = history.draw(this.shown, this.event, new Paint(svg, LOOKS, "evidence", wide, ruler(this.place), this.axes));
    svg.setAttribute("viewBox", `0 0 ${wide} ${height}`);
    this.ends = [left / wide, right / wide];
    this.place.replaceChildren(svg);
    this.place.ariaValueNow = this.event;
  }

  point(event) {
    if (!this.shown || (event.type === "pointermove" && event.buttons !== 1)) return;
    const [box, [left, right]] = [this.place.getBoundingClientRect(), this.ends];
    const share = ((event.clientX - box.left) / box.width - left) / (right - left);
    this.go(this.shown.events[inside(Math.floor(share * this.shown.events.length), 0, this.shown.events.length - 1)]);
  }

  key(event) {
    if (!this.shown || event.ctrlKey || event.altKey || event.metaKey) return;
    const { events } = this.shown;
    const [now, last] = [history.nearest(this.shown, this.event), events.length - 1];
    const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -20, PageUp: 20 }[event.key];
    if (by) this.go(events[inside(now + by, 0, last)]);
    else if (event.key === "Home" || event.key === "End") this.go(event.key === "Home" ? this.first : this.last);
    else if (event.key === "+") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else return;
    event.preventDefault();
  }
}

// Whether a file looks like a model's config.json.
async function configured(file) {
  const head = await file.slice(0, 4096).text();
  return head.trimStart().startsWith("{") && /"model_type"\s*:/.test(head);
}
