"""Show the reference's source in a chapter: the program that PyTorch trains and that the theory reads."""

import ast
from pathlib import Path
from textwrap import dedent

from ..common import checks

REFERENCE = Path(__file__).resolve().parents[1] / "reference"


def source(file: str, *names: str):
    """Lines of `reference/`, highlighted as Python.

    Args:
        file: a module of the reference, such as "gpt" or "hugging_face.decoders".
        names: functions, classes or methods in it, such as "Attention.forward".

    Raises:
        ValueError: for an unknown module or name.
    """
    from IPython.display import Markdown

    known = {
        path.relative_to(REFERENCE).with_suffix("").as_posix().replace("/", ".") for path in REFERENCE.rglob("*.py")
    }
    checks.one_of("source", "file", file, sorted(known))
    text = (REFERENCE / f"{file.replace('.', '/')}.py").read_text(encoding="utf-8")
    found = dict(_definitions(ast.parse(text)))
    for name in names:
        checks.one_of("source", "names", name, found)
    shown = (dedent(ast.get_source_segment(text, found[name], padded=True) or "") for name in names)
    return Markdown(f"```python\n# reference/{file.replace('.', '/')}.py\n" + "\n\n".join(shown) + "\n```")


def _definitions(node, path=""):
    """(name, node) of each function, class and method."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield path + child.name, child
            yield from _definitions(child, f"{path}{child.name}.")
