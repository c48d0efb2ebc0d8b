// What a reader leaves in this browser under a name: an object. Where the browser keeps nothing, it stays while the page does.
function keeping(name) {
  let memory = {};
  return {
    all() {
      try {
        return JSON.parse(localStorage.getItem(name)) ?? {};
      } catch {
        return memory;
      }
    },
    keep(all) {
      memory = all;
      try {
        localStorage.setItem(name, JSON.stringify(all));
      } catch {}
    },
  };
}

