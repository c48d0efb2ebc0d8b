// Python in a worker of the page: it reads what the reader gave, and the page stays free. Nothing is sent anywhere.

const HOME = new URL("lite/static/pyodide/", self.location.href).href;
const CHUNK = 2 ** 24; // bytes between two words on how far it is
let python, ready, reading;

async function start() {
  const { loadPyodide } = await import(`${HOME}pyodide.mjs`);
  python = await loadPyodide({ indexURL: HOME });
  const lock = await (await fetch(`${HOME}pyodide-lock.json`)).json();
  const wheel = await fetch(HOME + lock.packages.everybyte.file_name);
  python.unpackArchive(await wheel.arrayBuffer(), "wheel");
  python.runPython("import json\nfrom everybyte.answers.reading import Reading");
}

// A file in Python's own file system, chunk by chunk.
async function bring(file) {
  const out = python.FS.open("/given", "w");
  const reader = file.stream().getReader();
  for (let [done, told] = [0, 0]; ;) {
    const { value } = await reader.read();
    if (!value) break;
    python.FS.write(out, value, 0, value.length, done);
    done += value.length;
    if (done - told >= CHUNK) postMessage({ read: (told = done), of: file.size });
  }
  python.FS.close(out);
}

const asked = {
  async read({ file }) {
    await bring(file);
    reading?.destroy();
    reading = undefined;
    reading = python.runPython("Reading('/given')");
    return said(reading.answer());
  },
  crests: ({ device, first, last, columns }) => said(reading.crests(device, first, last, columns)),
  moment: ({ device, event }) => said(reading.moment(device, event)),
};

// What Python gave, as JSON has it: no proxies stay.
function said(found) {
  const text = python.globals.get("json").dumps(found);
  found.destroy();
  return JSON.parse(text);
}

// What Python raised, in its last line.
const refusal = (error) => String(error.message).trim().split("\n").at(-1).replace(/^[\w.]+: /, "");

let turn = Promise.resolve(); // one question after another
self.onmessage = ({ data }) => {
  turn = turn.then(async () => {
    try {
      await (ready ??= start());
    } catch (error) {
      return postMessage({ number: data.number, missing: String(error.message) });
    }
    try {
      postMessage({ number: data.number, found: await asked[data.ask](data) });
    } catch (error) {
      postMessage({ number: data.number, refused: refusal(error) });
    }
  });
};
