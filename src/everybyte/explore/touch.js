// ---- the hand on a chart: it points at an instant, drags it along, moves it by keys, and plays the step ---------

const PLAYED = 6000; // milliseconds that a step lasts where it is played
const PLAY = "\u25b6 play the step";

// What is drawn over a chart while a pointer is on it, or while it plays. It changes no state.
class Hand {
  constructor(view) {
    this.view = view;
    this.over = null;
    this.frame = 0;
  }

  // Of a kind that can be touched, the chart as something that can be focused and turned. It listens where no picture is replaced.
  take(now) {
    this.stop();
    const { kind, place, spec } = this.view;
    if (!kind.hit || !place.addEventListener) return;
    const said = { role: "slider", tabindex: "0", "aria-label": kind.handled, [KEYS]: "true", ...kind.range(spec, now) };
    for (const [name, value] of Object.entries(said)) place.setAttribute(name, value);
    if (this.listening) return;
    this.listening = true;
    place.style.touchAction = "pan-y";
    place.addEventListener("pointermove", (event) => (event.buttons ? this.move(this.hit(event)) : this.point(this.hit(event))));
    place.addEventListener("pointerdown", (event) => {
      place.focus({ preventScroll: true });
      place.setPointerCapture?.(event.pointerId);
      this.move(this.hit(event));
    });
    place.addEventListener("pointerleave", () => this.frame || this.clear());
    place.addEventListener("keydown", this.key);
  }

  hit(event) {
    const { place, width, kind, result } = this.view;
    const box = place.getBoundingClientRect();
    return result ? kind.hit(result, width, ((event.clientX - box.left) / box.width) * width) : 0;
  }

  // Words beside the pointer: what lives at an instant, and which operation it is.
  point(at) {
    const { kind, spec, width, result: now, place } = this.view;
    if (!now || this.frame || (at === this.at && this.over?.isConnected)) return;
    this.clear();
    const { x, lines } = kind.tip(spec, now, width, at);
    const [top, bottom] = kind.tall;
    const line = node("line", { x1: x, x2: x, y1: top - 8, y2: bottom, ...MARK });
    this.over = place.querySelector("svg").appendChild(tip(this.view, x, top + 18, lines, line));
    this.at = at;
  }

  clear() {
    this.over?.remove();
    this.over = null;
  }

  move(at) {
    const { view } = this;
    if (view.result) view.write({ ...view.read(), ...view.kind.moved(view.spec, view.result, at) });
  }

  key = (event) => {
    const { kind, result } = this.view;
    const turned = result && kind.turned(result, event.key);
    if (!result || turned === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopImmediatePropagation(); // a slider's handle moves by operations too
    this.move(turned);
  };

  // The step from its beginning: what is still to come is covered. Where motion is to be reduced, instant by instant.
  play(button) {
    if (this.frame) return this.stop();
    const { view } = this;
    const { kind, result: now, width } = view;
    const [top, bottom] = kind.tall;
    const svg = view.place.querySelector("svg");
    const still = globalThis.matchMedia?.("(prefers-reduced-motion: reduce)").matches;
    const start = performance.now();
    this.button = Object.assign(button, { textContent: "pause" });
    const tick = (time) => {
      const gone = Math.min(1, Math.max(0, (time - start) / PLAYED));
      const part = still ? Math.floor(gone * 6) / 6 : gone;
      this.clear();
      const { x, at, right } = kind.played(now, width, part);
      const cover = node("rect", { x, y: top - 8, width: Math.max(0, right - x), height: bottom - top + 8, class: "everybyte-cover" });
      const words = Object.assign(node("text", { x: x + (part > 0.6 ? -6 : 6), y: top + 8, "text-anchor": part > 0.6 ? "end" : "start", class: "everybyte-free" }), { textContent: amount(now.total[at]) });
      this.over = svg.appendChild(node("g", { "aria-hidden": "true" }, cover, words));
      if (gone < 1) this.frame = requestAnimationFrame(tick);
      else this.stop();
    };
    this.frame = requestAnimationFrame(tick);
  }

  stop() {
    if (this.frame) cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.clear();
    if (this.button) this.button.textContent = PLAY;
  }
}
