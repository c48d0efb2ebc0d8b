"""Who may import whom. An arrow never points up, and the witnesses know nothing of one another."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "everybyte"

GROUND = {"checks", "children", "files", "interrupts", "terminal", "units", "tables", "witness"}
STATED = GROUND | {"catalog", "choices", "mesh", "pipelines", "rules", "setup", "objectives"}
FORMULAS = STATED | {"theory", "formulas"}
BUDGET = FORMULAS | {"budget", "allocator"}
PLANNING = {"headroom", "plan", "fit", "layouts"}
DRAW = BUDGET | {"draw"}
COUNTED = STATED | {"reference", "splitting"}
EVERYTHING = (
    DRAW
    | COUNTED
    | PLANNING
    | {
        "adapters",
        "alignment",
        "allocator",
        "derivation",
        "evidence",
        "leaking",
        "monitoring",
        "diagnosis",
        "deriving",
        "dryrun",
        "lab",
        "rehearsal",
        "comparison",
        "explore",
        "teach",
        "machine",
        "own",
        "settling",
        "samples",
        "published",
        "megatron",
        "serving",
        "splitting",
    }
)
MAY = {
    "checks": set(),
    "children": {"interrupts"},
    "terminal": {"checks"},
    "files": {"checks", "terminal"},
    "interrupts": set(),
    "units": {"checks"},
    "tables": {"checks", "units"},
    "witness": {"tables", "units"},
    "catalog": GROUND,
    "mesh": GROUND,
    "pipelines": GROUND,
    "choices": GROUND,
    "rules": GROUND | {"catalog", "choices", "mesh", "pipelines"},
    "setup": GROUND | {"catalog", "choices", "mesh", "rules"},
    "objectives": GROUND | {"catalog", "mesh", "rules", "setup"},
    "theory": STATED | {"allocator"},
    "formulas": STATED | {"theory"},
    "budget": STATED | {"theory", "allocator"},
    "alignment": STATED | {"theory", "budget", "headroom", "serving"},
    "allocator": GROUND,
    "leaking": GROUND,
    "monitoring": STATED | {"leaking", "evidence", "diagnosis", "draw"},
    "evidence": STATED | {"allocator", "draw"},
    "diagnosis": BUDGET | PLANNING | {"allocator", "evidence"},
    "headroom": STATED,
    "plan": BUDGET | {"headroom"},
    "layouts": BUDGET | {"headroom", "plan"},
    "serving": STATED | {"theory", "headroom"},
    "fit": BUDGET | {"headroom", "plan", "derivation"},
    "draw": BUDGET,
    "explore": DRAW | PLANNING | {"derivation", "allocator", "dryrun", "evidence", "serving"},
    "teach": DRAW | PLANNING | {"derivation", "dryrun", "settling", "evidence", "serving", "diagnosis"},
    "splitting": STATED,
    "reference": STATED | {"splitting"},
    "adapters": COUNTED,  # peft's, in the models that the book's own step trains
    "dryrun": COUNTED | {"allocator", "adapters"},
    "lab": COUNTED | {"adapters"},
    "derivation": STATED | {"draw"},  # a formula, whoever derived it
    "deriving": COUNTED | {"dryrun", "derivation"},
    "own": STATED | PLANNING | {"budget", "derivation", "deriving", "allocator"},
    "rehearsal": COUNTED | {"lab"},
    "comparison": DRAW | COUNTED | {"dryrun", "lab", "rehearsal"},  # where the two sides meet
    "settling": BUDGET | COUNTED | {"dryrun", "samples"},  # the articles' claims, against either side
    "samples": set(),
    "published": COUNTED | {"dryrun", "allocator"},
    "megatron": COUNTED | {"dryrun"},
    "machine": GROUND,
    "command": EVERYTHING | {"__init__"},
    "__init__": EVERYTHING,
}
NEVER = {"torch", "matplotlib", "ipywidgets", "anywidget", "IPython"}
WITHOUT = {
    "checks",
    "terminal",
    "children",
    "files",
    "interrupts",
    "choices",
    "mesh",
    "pipelines",
    "rules",
    "units",
    "tables",
    "witness",
    "allocator",
    "catalog",
    "setup",
    "theory",
    "formulas",
    "budget",
    "alignment",
    "derivation",
    "objectives",
    "own",
    "serving",
} | PLANNING
#: What the formulas alone need, and loading the theory does not.
SYMBOLIC = WITHOUT - {"formulas", "derivation"}


def imports(tree, package):
    """(module, whether it is imported when the file is) for each import; `package`: the parts of its package."""
    late = {n for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.Lambda) for n in ast.walk(f)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node not in late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == "everybyte":
                yield from ((f"everybyte.{alias.name}", node not in late) for alias in node.names)
            else:
                yield module, node not in late


def faults(package=PACKAGE):
    """What the rule forbids, in words, under the folder of a package."""
    found = []
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        unit = inside.parts[0].removesuffix(".py")
        where = ("everybyte", *inside.parent.parts)
        if unit not in MAY:
            found.append(f"{unit} has no place in the import rule")
            continue
        for module, early in imports(ast.parse(path.read_text(encoding="utf-8")), where):
            top, _, rest = module.partition(".")
            target = rest.split(".")[0]
            target = target if target in MAY else "__init__"  # a name of the package's face
            if top == "everybyte" and target != unit and target not in MAY[unit]:
                found.append(f"{inside.as_posix()} imports {module}")
            if unit in WITHOUT and (top in NEVER or (top == "numpy" and early)):
                found.append(f"{inside.as_posix()} imports {module}")
            if unit in SYMBOLIC and top == "sympy":
                found.append(f"{inside.as_posix()} imports {module}")
    return found


def test_no_arrow_points_up():
    assert faults() == []


def test_the_rule_allows_no_circle():
    below = {unit: may - {unit} for unit, may in MAY.items()}
    assert [*TopologicalSorter(below).static_order()]  # raises CycleError


def files_below(package=PACKAGE):
    """File -> the files that it imports, early or late; both by their paths."""
    known = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        known[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found = {}
    for name, path in known.items():
        package_of = tuple(name.split(".")) if path.name == "__init__.py" else tuple(name.split(".")[:-1])
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules = {module for module, _ in imports(tree, package_of)}
        for node in ast.walk(tree):  # of `from . import units` the file is meant
            if isinstance(node, ast.ImportFrom):
                base = package_of[: len(package_of) + 1 - node.level] if node.level else ()
                whole = ".".join([*base, *([node.module] if node.module else [])])
                inside = {f"{whole}.{alias.name}" for alias in node.names} & known.keys()
                modules = (modules - {whole} if len(inside) == len(node.names) else modules) | inside
        found[name] = (modules & known.keys()) - {name, "everybyte"}
    return found


def test_no_two_files_import_each_other():
    """Nor do several in a circle, early or late."""
    assert [*TopologicalSorter(files_below()).static_order()]  # raises CycleError


def test_a_circle_of_files_is_found(tmp_path):
    package = tmp_path / "everybyte"
    package.mkdir()
    (package / "a.py").write_text("from . import b")
    (package / "b.py").write_text("def f():\n    from .a import x")
    assert files_below(package) == {"everybyte.a": {"everybyte.b"}, "everybyte.b": {"everybyte.a"}}


@pytest.mark.parametrize(
    "path, text",
    [
        ("units.py", "from .catalog import Model"),
        ("formulas/states.py", "from ..budget import budget"),
        ("formulas/states.py", "from .. import budget"),
        ("reference/gpt.py", "from ..formulas import formula"),
        ("dryrun/tracker.py", "def f():\n    from everybyte.budget import budget"),
        ("dryrun/tracker.py", "import everybyte.formulas.states"),
        ("dryrun/tracker.py", "import everybyte"),
        ("draw/figures.py", "from ..dryrun import dry_run"),
        ("catalog/models.py", "from ..formulas import formula"),
        ("catalog/models.py", "def f():\n    from ..formulas import formula"),
        ("plan.py", "def f():\n    from .fit import fit"),
        ("fit.py", "def f():\n    from .deriving import derive"),
        ("theory/tape.py", "import sympy"),
        ("formulas/states.py", "import numpy as np"),
        ("formulas/states.py", "def f():\n    import torch"),
        ("budget.py", "from matplotlib import pyplot"),
        ("stray.py", ""),
    ],
)
def test_a_violation_is_found(tmp_path, path, text):
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text(text)
    assert len(faults(tmp_path)) == 1


@pytest.mark.parametrize(
    "path, text",
    [
        ("fit.py", "from .plan import plan"),
        ("formulas/states.py", "from . import symbols\nfrom ..catalog import Model\nimport sympy"),
        ("formulas/states.py", "def f():\n    import numpy"),
        ("dryrun/tracker.py", "import torch\nfrom ..reference import GPT"),
    ],
)
def test_what_is_allowed_is_not_a_violation(tmp_path, path, text):
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text(text)
    assert faults(tmp_path) == []


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, everybyte; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "everybyte" in loaded
    assert not (NEVER | {"numpy", "sympy"}) & set(loaded)


def test_the_explorers_load_neither_torch_nor_what_draws_on_paper():
    code = "import sys, everybyte.explore; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "anywidget" in loaded and not {"torch", "numpy", "matplotlib"} & set(loaded)


def test_what_draws_is_found_by_its_name_and_no_module_hides_it():
    from everybyte import draw

    modules = {path.stem for path in (PACKAGE / "draw").glob("*.py")} - {"__init__", "palette"}
    assert modules == set(draw._MODULES) and not modules & set(draw.__all__)
    assert not [name for name in draw.__all__ if isinstance(getattr(draw, name), ModuleType)]
    with pytest.raises(AttributeError, match="no attribute 'pie'"):
        draw.pie  # noqa: B018
