"""Who may import whom. An arrow never points up, and the witnesses know nothing of one another."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "everybyte"

GROUND = {"common", "units"}
#: What a step is, and what is asked for.
ASKED = {"ask.choices", "ask.lengths", "ask.mesh", "ask.objectives", "ask.routing", "ask.schedules", "ask.setup"}
STATED = GROUND | {"step", "catalog", "rules"} | ASKED
FORMULAS = STATED | {"theory", "formulas"}
BUDGET = FORMULAS | {"theory.budget", "allocator"}
PLANNING = {
    f"answers.{name}" for name in ("communicators", "headroom", "rates", "work", "plan", "fit", "layouts", "throughput")
}
DRAW = BUDGET | {"draw"}
COUNTED = STATED | {"reference"}
ANSWERS = {
    f"answers.{name}"
    for name in """
        advice alignment colocated comparison diagnosis engines epochs explanation leaking machine monitoring
        own reading recorded rehearsing scripts serving sides
    """.split()
}
EVERYTHING = (
    DRAW
    | COUNTED
    | PLANNING
    | ANSWERS
    | {"derivation", "deriving", "dryrun", "evidence", "explore", "lab", "published", "guard", "rehearsal", "teach"}
)
#: Room, or a file of its own rule -> the rooms and files that it may import, besides its own.
MAY = {
    "units": {"common.checks"},
    "common": {"units"},
    "step": GROUND,
    "catalog": GROUND,
    "ask.mesh": GROUND | {"ask.schedules"},
    "ask.schedules": GROUND,
    "ask.choices": GROUND,
    "ask.lengths": GROUND,
    "ask.routing": GROUND,
    "rules": GROUND | {"catalog", "ask.choices", "ask.mesh", "ask.schedules"},
    "ask.setup": GROUND | {"catalog", "rules", "ask.choices", "ask.mesh"},
    "ask.objectives": GROUND | {"catalog", "rules", "ask.mesh", "ask.setup"},
    "allocator": GROUND,
    "theory": STATED | {"allocator"},
    "formulas": STATED | {"theory"},
    "theory.budget": STATED | {"theory", "allocator"},
    "answers.communicators": STATED,
    "answers.headroom": STATED | {"answers.communicators"},
    "answers.rates": STATED,
    "answers.work": BUDGET | {"answers.rates"},
    "answers.plan": BUDGET | {"answers.headroom", "answers.rates", "answers.work"},
    "answers.layouts": BUDGET
    | {"answers.communicators", "answers.headroom", "answers.rates", "answers.work", "answers.throughput"},
    "answers.throughput": STATED,
    "answers.engines": STATED,
    "answers.colocated": STATED,
    "answers.serving": STATED | {"theory", "dryrun", "answers.engines", "answers.headroom"},
    "answers.fit": BUDGET | {"derivation", "answers.headroom", "answers.plan"},
    "answers.own": STATED | PLANNING | {"theory.budget", "derivation", "deriving", "allocator"},
    "answers.alignment": STATED
    | {
        "theory",
        "theory.budget",
        "answers.colocated",
        "answers.engines",
        "answers.headroom",
        "answers.serving",
        "answers.work",
    },
    "answers.epochs": BUDGET | {"derivation", "deriving", "draw", "answers.headroom"},
    "answers.leaking": GROUND,
    "answers.scripts": STATED | {"answers.headroom", "rehearsal"},
    "answers.machine": GROUND,
    "answers.monitoring": STATED | {"evidence", "draw", "answers.leaking", "answers.diagnosis"},
    "answers.advice": BUDGET | PLANNING | {"evidence"},
    "answers.recorded": BUDGET | PLANNING | {"evidence", "answers.advice"},
    "answers.diagnosis": BUDGET | PLANNING | {"evidence", "answers.advice", "answers.recorded"},
    "answers.reading": STATED | {"evidence", "answers.diagnosis"},
    "answers.rehearsing": STATED | {"evidence", "rehearsal", "answers.advice", "answers.headroom"},
    "answers.comparison": DRAW | COUNTED | {"dryrun", "lab", "rehearsal"},  # where the two sides meet
    "answers.sides": BUDGET | {"derivation", "evidence", "lab", "rehearsal", "answers.comparison"},
    "answers.explanation": STATED | {"answers.sides", "evidence", "draw"},
    "evidence": STATED | {"allocator", "draw"},
    "draw": BUDGET,
    "explore": DRAW
    | PLANNING
    | {
        "derivation",
        "dryrun",
        "evidence",
        "answers.alignment",
        "answers.diagnosis",
        "answers.engines",
        "answers.serving",
    },
    "teach": DRAW
    | PLANNING
    | {"derivation", "dryrun", "evidence", "published", "answers.engines", "answers.serving", "answers.diagnosis"},
    "reference": STATED,
    "dryrun": COUNTED | {"allocator"},
    "lab": COUNTED,
    "derivation": STATED | {"draw"},  # a formula, whoever derived it
    "deriving": COUNTED | {"allocator", "dryrun", "derivation"},
    "rehearsal": COUNTED | {"lab", "evidence"},
    "published": BUDGET
    | COUNTED
    | {
        "dryrun",
        "rehearsal",
        "answers.engines",
        "answers.throughput",
        "answers.headroom",
    },  # what others say, against either side
    "guard": STATED | {"rehearsal", "answers.scripts"},
    "command": EVERYTHING | {"__init__"},
    "__init__": EVERYTHING,
}
#: Rooms whose files have rules of their own: of the room itself there is a sentence.
APART = ("ask", "answers")
NEVER = {"torch", "matplotlib", "ipywidgets", "anywidget", "IPython"}
#: Those that need neither torch nor what draws.
WITHOUT = (
    BUDGET
    | PLANNING
    | {"derivation", "answers.alignment", "answers.colocated", "answers.engines", "answers.own", "answers.serving"}
)
#: What the formulas alone need, and loading the theory does not.
SYMBOLIC = WITHOUT - {"formulas", "derivation"}


def unit_of(module):
    """Whose rule it is: of a module by its parts after the package's name."""
    return ".".join(module[:2]) if ".".join(module[:2]) in MAY else module[0] if module else ""


def allowed(unit, target, module):
    """Whether one of a unit may import a module of another, whose parts these are."""
    return target == unit or target in MAY[unit] or ".".join(module[:2]) in MAY[unit]


def imports(tree, package):
    """(module, whether it is imported when the file is) for each import; `package`: the parts of its package."""
    late = {n for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.Lambda) for n in ast.walk(f)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node not in late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module in ("everybyte", *(f"everybyte.{room}" for room in (*APART, "common"))):
                yield from ((f"{module}.{alias.name}", node not in late) for alias in node.names)
            else:
                yield module, node not in late


def faults(package=PACKAGE):
    """What the rule forbids, in words, under the folder of a package."""
    found = []
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        unit = unit_of((*inside.parent.parts, inside.stem)[:2])
        where = ("everybyte", *inside.parent.parts)
        if unit in APART and inside.name == "__init__.py":
            continue
        if unit not in MAY:
            found.append(f"{unit} has no place in the import rule")
            continue
        for module, early in imports(ast.parse(path.read_text(encoding="utf-8")), where):
            top, _, rest = module.partition(".")
            target = unit_of(rest.split("."))
            target = target if target in MAY else "__init__"  # a name of the package's face
            if top == "everybyte" and not allowed(unit, target, rest.split(".")):
                found.append(f"{inside.as_posix()} imports {module}")
            if unit in WITHOUT and (top in NEVER or (top == "numpy" and early)):
                found.append(f"{inside.as_posix()} imports {module}")
            if unit in SYMBOLIC and top == "sympy":
                found.append(f"{inside.as_posix()} imports {module}")
    return found


def test_no_arrow_points_up():
    assert faults() == []


def test_the_picture_of_the_house_has_every_room_below_those_that_import_it():
    text = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    picture = text.partition("## The house\n")[2].split("```")[1]
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    words = (word for line in picture.splitlines() for word in line.split()[:3])
    drawn = list(dict.fromkeys(word for word in words if word in rooms))
    assert rooms and rooms == set(drawn)
    arrows = {
        (name.split(".")[1], one.split(".")[1]) for name, below in files_below().items() for one in below if "." in name
    }
    up = {(a, b) for a, b in arrows if {a, b} <= rooms and drawn.index(b) < drawn.index(a)}
    assert up == {("rules", "ask"), ("draw", "theory")}  # as the text says


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
        ("formulas/states.py", "from ..theory.budget import budget"),
        ("formulas/states.py", "from .. import budget"),
        ("reference/gpt.py", "from ..formulas import formula"),
        ("dryrun/tracker.py", "def f():\n    from everybyte.theory.budget import budget"),
        ("dryrun/tracker.py", "import everybyte.formulas.states"),
        ("dryrun/tracker.py", "import everybyte"),
        ("draw/figures.py", "from ..dryrun import dry_run"),
        ("catalog/models.py", "from ..formulas import formula"),
        ("catalog/models.py", "def f():\n    from ..formulas import formula"),
        ("answers/plan.py", "def f():\n    from .fit import fit"),
        ("answers/fit.py", "def f():\n    from ..deriving import derive"),
        ("theory/tape.py", "import sympy"),
        ("formulas/states.py", "import numpy as np"),
        ("formulas/states.py", "def f():\n    import torch"),
        ("theory/budget.py", "from matplotlib import pyplot"),
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
        ("answers/fit.py", "from .plan import plan"),
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

    modules = {path.stem for path in (PACKAGE / "draw").glob("*.py")} - {"__init__"}
    assert not modules & set(draw.__all__)
    assert not [name for name in draw.__all__ if isinstance(getattr(draw, name), ModuleType)]
    with pytest.raises(AttributeError, match="no attribute 'pie'"):
        draw.pie  # noqa: B018
