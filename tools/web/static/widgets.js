// The page's explorers, live without a kernel: the widgets' state, stored when the chapter ran, becomes models and
// views again. Their links and the picture's formulas run in the browser; a button that needs Python does nothing.
(() => {
  const STATE = 'script[type="application/vnd.jupyter.widget-state+json"]';
  const modules = window.everybyteModules;

  class Manager {
    constructor(states) {
      this.states = states;
      this.models = {};
    }
    get_model(id) {
      return (this.models[id] ??= this.make(id));
    }
    has_model(id) {
      return id in this.states;
    }
    async make(id) {
      const { model_module, model_name, state } = this.states[id];
      const Model = modules[model_module]?.[model_name];
      if (!Model) throw new Error(`this page cannot show ${model_name} of ${model_module}`);
      const attributes = await Model._deserialize_state(state, this);
      const model = new Model(attributes, { model_id: id, widget_manager: this });
      model.name = model_name;
      model.module = model_module;
      return model;
    }
    async create_view(model, options = {}) {
      const View = modules[model.get("_view_module")][model.get("_view_name")];
      const view = new View({ model, options });
      view.listenTo(model, "destroy", view.remove);
      await view.render();
      return view;
    }
    resolveUrl(url) {
      return Promise.resolve(url);
    }
    inline_sanitize(text) {
      return text;
    }
    callbacks() {
      return {};
    }
  }

  async function show(manager, place) {
    const view = await manager.create_view(await manager.get_model(place.dataset.model));
    place.replaceChildren();
    view.luminoWidget.constructor.attach(view.luminoWidget, place);
    // A key that moves a slider must not turn the page as well.
    place.addEventListener("keydown", (event) => event.stopPropagation());
  }

  async function start() {
    const stored = document.querySelector(STATE);
    if (!stored) return;
    if (window.MathJax) MathJax.Hub ??= { Queue() {} }; // asked to typeset labels; ours hold no formulas
    const manager = new Manager(JSON.parse(stored.textContent).state);
    await Promise.all(Object.keys(manager.states).map((id) => manager.get_model(id))); // links are models, too
    for (const place of document.querySelectorAll(".everybyte-live")) await show(manager, place);
    document.documentElement.dataset.explorers = "ready";
  }

  const started = () => start().catch((error) => {
    console.error(error);
    document.documentElement.dataset.explorers = "failed";
  });
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", started);
  else started();
})();
