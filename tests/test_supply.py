"""What this repository runs, and fetches: nothing that a file, a text or a server decides, but for the few places named here.

Python is read as Python, in the package, the tools and the cells of every notebook; `SECURITY.md` says who is trusted with what.
"""

import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: Called by these names, text or bytes become a program.
RUNS = {"eval", "exec", "compile", "execfile", "__import__"}
#: Called so, a file's bytes do, or a shell's words.
UNPICKLES = {
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "marshal.load",
    "marshal.loads",
    "joblib.load",
    "dill.load",
    "dill.loads",
}
UNPICKLES |= {"shelve.open", "yaml.load", "yaml.unsafe_load", "numpy.load", "np.load", "pandas.read_pickle"}
SHELLS = {
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "commands.getoutput",
    "pty.spawn",
}
#: Imported, they fetch.
FETCH = {
    "urllib.request",
    "http.client",
    "ftplib",
    "smtplib",
    "requests",
    "httpx",
    "aiohttp",
    "urllib3",
    "wget",
    "huggingface_hub",
    "datasets",
}
#: Called on anything, they fetch.
FETCHING = {
    "from_pretrained",
    "hf_hub_download",
    "snapshot_download",
    "load_dataset",
    "load_state_dict_from_url",
    "urlretrieve",
    "urlopen",
}
#: Where one of these stands and why it may.
ALLOWED = {
    ("tools/beside/scripts/sft.py", "datasets"): "a table of rows that the script makes; nothing is fetched",
    (
        "src/everybyte/formulas/printing.py",
        "exec",
    ): "the source is printed from the registry's expressions, nothing else",
    ("src/everybyte/dryrun/lowered.py", "compile"): "a stand-in for torch.compile: torchao's own optimizer calls it",
    (
        "src/everybyte/dryrun/lowered.py",
        "exec",
    ): "lines that make and drop buffers, of the code that Inductor wrote for torchao's function",
    ("src/everybyte/formulas/readings.py", "eval"): "a size that the theory's own operations say",
    ("src/everybyte/theory/course.py", "compile"): "the same",
    ("src/everybyte/theory/course.py", "eval"): "the same",
    ("src/everybyte/theory/compiled.py", "compile"): "the same",
    ("src/everybyte/theory/compiled.py", "exec"): "the same, all of a course at once",
    ("src/everybyte/theory/programs.py", "exec"): "the package's own reference, with other names in PyTorch's place",
    (
        "src/everybyte/explore/courses.py",
        "compile",
    ): "the same, or a form that a derivation solved, of whole numbers and letters",
    ("src/everybyte/explore/courses.py", "eval"): "the same",
    ("src/everybyte/derivation/printing.py", "exec"): "the source is printed from whole numbers and two letters",
    ("src/everybyte/evidence/pickles.py", "pickle.Unpickler"): "it loads no name at all",
    ("tools/fuzzing/values.py", "eval"): "sums of digits and signs that it drew itself",
}
#: What a text without has none of them, and needs no parsing.
WORDS = re.compile(
    "|".join(
        {n.rpartition(".")[2] for n in RUNS | UNPICKLES | SHELLS | FETCHING}
        | FETCH
        | {"shell", "hub", r"(?m:^\s*[!%])"}
    )
)


def sources():
    """(where, Python) of the package, the tools, and each cell of a notebook."""
    for folder in ("src", "tools", "labs", "notebooks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    for path in sorted([*(ROOT / "notebooks").glob("*.ipynb"), *(ROOT / "labs").glob("*.ipynb")]):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        for cell in cells:
            text = "".join(cell["source"])
            if cell["cell_type"] == "code":
                yield path.relative_to(ROOT).as_posix(), text


def name_of(node):
    """A call's name with its dots, as far as it has one."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def found(text):
    """What in a program runs or fetches what is not its own, by name."""
    if re.search(r"(?m)^\s*(!|%%?(bash|sh|system|sx|run|pip|conda|script)\b)", text):
        yield "a shell"
        text = re.sub(r"(?m)^\s*[!%].*", "pass", text)
    tree = ast.parse(re.sub(r"(?m)^(\s*)%.*", r"\1pass", text))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            if isinstance(node, ast.ImportFrom):
                names += [f"{node.module}.{a.name}" for a in node.names]
            yield from (name for name in names if name in FETCH and not getattr(node, "level", 0))
            if isinstance(node, ast.ImportFrom):
                yield from (name for name in names if name in UNPICKLES | SHELLS)
        if isinstance(node, ast.ClassDef):
            yield from (name_of(base) for base in node.bases if name_of(base) in UNPICKLES)
        if not isinstance(node, ast.Call):
            continue
        name, keywords = name_of(node.func), {k.arg: k.value for k in node.keywords}
        if name in RUNS | UNPICKLES | SHELLS:
            yield name
        if name.rpartition(".")[2] in FETCHING:
            yield name.rpartition(".")[2]
        if name.endswith("torch.load") or name == "hub.load":
            checked = keywords.get("weights_only")
            if not (isinstance(checked, ast.Constant) and checked.value is True):
                yield "torch.load"
        if "shell" in keywords and not (
            isinstance(keywords["shell"], ast.Constant) and keywords["shell"].value is False
        ):
            yield "shell=True"


def test_nothing_is_run_or_fetched_but_what_is_named_here():
    there = {(where, what) for where, text in sources() if WORDS.search(text) for what in found(text)}
    assert there - ALLOWED.keys() == set()
    assert ALLOWED.keys() - there == set(), "named here, and no longer there"


@pytest.mark.parametrize(
    ("program", "what"),
    [
        ("eval('1')", "eval"), ("import pickle\npickle.loads(b'')", "pickle.loads"), ("from pickle import loads", "pickle.loads"),
        ("torch.load(path)", "torch.load"), ("torch.load(path, weights_only=False)", "torch.load"), ("os.system('ls')", "os.system"),
        ("subprocess.run('ls', shell=True)", "shell=True"), ("AutoModel.from_pretrained('x')", "from_pretrained"),
        ("import urllib.request", "urllib.request"), ("from urllib.request import urlopen", "urllib.request"), ("!pip install x", "a shell"),
        ("%%bash\nls", "a shell"), ("class Mine(pickle.Unpickler): pass", "pickle.Unpickler"),
    ],
)  # fmt: skip
def test_what_would_run_or_fetch_is_seen(program, what):
    assert what in set(found(program)) and WORDS.search(program)


def test_what_is_harmless_is_not():
    assert not set(
        found(
            "re.compile('a'); model.eval(); torch.load(p, weights_only=True); subprocess.run(['ls']); %timeit 1".replace(
                "; ", "\n"
            )
        )
    )
