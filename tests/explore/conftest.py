"""Node runs what the browser would."""

import json
import shutil
import subprocess
from functools import cache

import pytest
from matplotlib.backends import backend_agg

from everybyte.explore import controls


@pytest.fixture(scope="session")
def node(tmp_path_factory):
    """run(script, data): the script's default export, a function of data, called by Node; its result as JSON holds it."""
    program = shutil.which("node")
    if not program:
        pytest.skip("there is no Node on this machine to run the explorers' JavaScript")
    folder = tmp_path_factory.mktemp("node")

    def run(script, data, **modules):
        for name, source in modules.items():
            (folder / f"{name}.mjs").write_text(source, encoding="utf-8")
        (folder / "script.mjs").write_text(script, encoding="utf-8")
        main = (
            "import { readFileSync } from 'node:fs';\nimport run from './script.mjs';\n"
            "console.log(JSON.stringify(await run(JSON.parse(readFileSync(0, 'utf-8')))));\n"
        )
        (folder / "main.mjs").write_text(main, encoding="utf-8")
        done = subprocess.run(
            [program, folder / "main.mjs"], input=json.dumps(data), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(autouse=True)
def fresh_kernel(monkeypatch):
    """Each test opens its explorers as a fresh kernel does: nothing shared yet."""
    monkeypatch.setattr(controls, "_SHARED", {})


@pytest.fixture(autouse=True, scope="session")
def one_parser():
    """Every figure's renderer parses mathematical text on its own: one for all remembers the labels of an axis."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend_agg, "MathTextParser", cache(backend_agg.MathTextParser))
        yield
