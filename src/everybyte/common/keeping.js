// An element of a page: its words, its properties, and what stands in it.
function element(name, words = "", more = {}, ...children) {
  const made = Object.assign(document.createElement(name), { textContent: words }, more);
  made.append(...children);
  return made;
}

// The same with a class of the book's own.
const made = (name, called, words = "", more = {}, ...children) => element(name, words, { className: `everybyte-${called}`, ...more }, ...children);

// A button that is pressed with a pointer or a key.
const button = (words, onclick, more = {}) => element("button", words, { type: "button", onclick, ...more });

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

