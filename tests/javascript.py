"""Node runs what the browser would."""

import json
import shutil
import subprocess
from itertools import count
from threading import Timer

import pytest

#: What Node runs: a script's default export on its data, one line of JSON each, and nothing of one script is left for the next.
SERVER = """
import { createInterface } from "node:readline";
const own = new Set(Object.getOwnPropertyNames(globalThis));
for await (const line of createInterface({ input: process.stdin })) {
  const { script, data } = JSON.parse(line);
  let said;
  try {
    said = { result: await (await import(script)).default(data) };
  } catch (error) {
    said = { error: error?.stack ?? String(error) };
  }
  for (const name of Object.getOwnPropertyNames(globalThis)) if (!own.has(name)) delete globalThis[name];
  process.stdout.write(JSON.stringify(said) + "\\n");
}
"""


@pytest.fixture(scope="session")
def node(tmp_path_factory):
    """run(script, data): the script's default export, a function of data, called by Node; its result as JSON holds it.

    One Node for all, which takes longer to start than most scripts; each script and its modules are loaded anew.
    """
    program = shutil.which("node")
    if not program:
        pytest.skip("there is no Node on this machine to run the explorers' JavaScript")
    root = tmp_path_factory.mktemp("node")
    (root / "server.mjs").write_text(SERVER, encoding="utf-8")
    server = subprocess.Popen([program, root / "server.mjs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    numbers = count()

    def run(script, data, **modules):
        folder = root / str(next(numbers))
        folder.mkdir()
        for name, source in {**modules, "script": script}.items():
            (folder / f"{name}.mjs").write_text(source, encoding="utf-8")
        asked = {"script": (folder / "script.mjs").as_uri(), "data": data}
        server.stdin.write(json.dumps(asked).encode() + b"\n")
        server.stdin.flush()
        watch = Timer(60, server.kill)  # then it says nothing
        watch.start()
        try:
            said = server.stdout.readline()
        finally:
            watch.cancel()
        assert said, "Node has ended, or said nothing within 60 s"
        said = json.loads(said)
        assert "error" not in said, said["error"]
        return said["result"]

    yield run
    server.stdin.close()
    server.wait(10)
