// The page's module loader. ipywidgets' and anywidget's own programs, which their wheels carry, are AMD modules made
// for a notebook's page. This is as much of such a page as they use: they run in the order of their script tags, and
// whatever they ask of the notebook around them is nothing, and does nothing.
(() => {
  const modules = {};
  const named = { "controls.js": ["base", "controls", "output"].map((n) => `@jupyter-widgets/${n}`), "anywidget.js": ["anywidget"] };
  const nothing = new Proxy(() => {}, { get: () => nothing, apply: () => nothing });
  window.Jupyter = { version: "7.0.0" };
  window.requirejs = Object.assign((names, then) => then?.(...names.map(() => nothing)), { config() {} });
  window.define = (needs, make) => {
    const uri = document.currentScript.src;
    const made = make(...needs.map((need) => (need === "module" ? { uri } : modules[need])));
    for (const name of named[new URL(uri).pathname.split("/").pop()]) modules[name] = made;
    made.load_ipython_extension?.(); // ipywidgets puts its styles into the page
  };
  window.everybyteModules = modules;
})();
