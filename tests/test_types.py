"""mypy reads the package as an editor does: it finds nothing there, passes right use of the public names, and stops wrong use."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: A wrong line -> the kind of mistake that mypy sees in it.
WRONG = {
    'eb.Setup(precision="fp64")': "arg-type",
    "eb.Setup(bacth=8)": "call-arg",
    'eb.budget("gpt2").peak.foo': "call-arg",
    "eb.budget(gpt2, eb.Setup()).peak.foo": "attr-defined",
    "eb.dry_run(gpt2, 8)": "arg-type",
    "eb.bugdet(gpt2, eb.Setup())": "attr-defined",
    "eb.fit(gpt2, eb.Setup(), eb.gpus)": "arg-type",
    "eb.fit(gpt2, eb.Setup(), 't4').value + 1": "operator",  # where nothing fits there is no value
    "gpt2.width = 8": "misc",  # a model does not change
    "eb.Model(width=64, heads=4, vocabulary=100)": "call-arg",
    "eb.model(8)": "arg-type",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What mypy says of everything at once: the package, the right use, the wrong use."""
    folder = tmp_path_factory.mktemp("typing")
    wrong = folder / "wrong.py"
    wrong.write_text("import everybyte as eb\n\ngpt2 = eb.model('gpt2')\n" + "\n".join(WRONG) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--no-color-output", "--cache-dir", str(ROOT / ".mypy_cache")]
    answer = subprocess.run(
        [*command, "src/everybyte", "tests/typing", str(wrong)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert answer.returncode in (0, 1), answer.stderr or answer.stdout
    return [line for line in answer.stdout.splitlines() if ": error: " in line], wrong


def test_nothing_is_wrong_in_the_package_nor_in_its_right_use(said):
    errors, wrong = said
    assert [line for line in errors if wrong.name not in line] == []


@pytest.mark.parametrize("line", WRONG)
def test_wrong_use_is_seen(said, line):
    errors, wrong = said
    at = 4 + list(WRONG).index(line)
    of_line = [error for error in errors if f"{wrong.name}:{at}: " in error]
    assert any(error.endswith(f"[{WRONG[line]}]") for error in of_line), of_line
