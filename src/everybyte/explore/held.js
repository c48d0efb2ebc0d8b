// ---- what a reader holds: a state to compare with, and a run of their own ---------------------------------------

const RUN = ["model", "precision", "optimizer", "batch", "sequence", "gpu"]; // the controls that explorers share
const KEPT = "everybyte-run";
const runs = keeping(KEPT); // {control: its number, or its option's label}

const HELD = { className: "everybyte-hold" };

class Held {
  pinned = null; // {state, result}

  constructor(view) {
    this.view = view;
    this.pin = button("pin this state", () => this.turn(), HELD);
    this.mine = button("this is my run", () => this.keep(), HELD);
    this.go = button("go to my run", () => view.go("Your run", this.run()), HELD);
    this.buttons = [this.pin, this.mine, this.go];
    [this.said, this.place] = [made("p", "against", "", { ariaLive: "polite" }), made("div", "pinned")];
    this.mine.hidden = !view.spec.controls.some((c) => RUN.includes(c.name));
    this.go.hidden = true;
  }

  // The states of these controls in the reader's run, as far as they offer them.
  run() { return stated(this.view.spec, runs.all()); }

  keep() {
    const state = this.view.read();
    const forgets = this.isMine(state);
    const said = worded(this.view.spec, state).filter(([name]) => RUN.includes(name));
    runs.keep(forgets ? {} : { ...runs.all(), ...Object.fromEntries(said) });
    this.attend(state);
    globalThis.dispatchEvent?.(new Event(KEPT)); // each picture is a module of its own
  }

  // Hears of a run that another picture, or another page, keeps; what it returns ends that.
  hear() {
    const told = () => this.attend(this.view.read());
    for (const event of [KEPT, "storage"]) globalThis.addEventListener?.(event, told);
    return () => { for (const event of [KEPT, "storage"]) globalThis.removeEventListener?.(event, told); };
  }

  isMine(state) {
    const run = this.run();
    return Object.keys(run).length > 0 && isIn(state, run);
  }

  turn() {
    const { view } = this;
    this.pinned = this.pinned ? null : { state: view.read(), result: view.result };
    this.pin.textContent = this.pinned ? "unpin" : "pin this state";
    this.attend(view.read());
    if (view.result) view.show(view.result);
  }

  // After each change: which buttons there are, and what differs from the pinned state.
  attend(state) {
    const { view, pinned } = this;
    const [mine, run] = [this.isMine(state), this.run()];
    this.mine.textContent = mine ? "forget my run" : "this is my run";
    this.go.hidden = mine || !Object.keys(run).length;
    if (!pinned) {
      this.said.textContent = "";
      this.place.replaceChildren();
    } else if (isIn(state, pinned.state)) this.said.textContent = "Pinned. What differs from this state will stand here.";
    else this.said.textContent = `Against the pinned state: ${view.kind.change(view.spec, pinned.result, view.result, whatChanged(view.spec, pinned.state, state, ""))}`;
  }

  // The pinned state's picture, on the axes of the one above; drawn before it too, so that both are on the same.
  show() {
    if (this.pinned) this.place.replaceChildren(this.view.drawn(this.pinned.result, `${this.view.id}-pinned`).svg);
  }
}
