"""Where an operation of a step is from: the chapter that derives what it takes, and the function of the reference that runs it."""

import inspect
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath

from ..ask.setup import Setup
from ..catalog import Model
from ..step.course import PEAKS
from ..theory.programs import family
from ..theory.stand_in import Module
from .beside import table

_TABLE = "origins.toml"
_REFERENCE = f"{__package__.rpartition('.')[0]}.reference."


def chapter(moment: str, owner: str, parts: Iterable[str]) -> str:
    """The slug of the chapter, by the moment, the owner and the parts that an operation takes of; empty where none derives it."""
    for row in table(_TABLE)["rows"]:
        owners = row.get("owner", [owner])
        if (
            moment in row.get("moment", [moment])
            and ("part" not in row or not set(row["part"]).isdisjoint(parts))
            and any(owner == each or each and owner.startswith(f"{each}.") for each in owners)
        ):
            return row["chapter"]
    return ""


def codes(model: Model) -> dict[str, str]:
    """Owner, a block's number as `*` -> the line of the reference that calls it, or the function that it is; empty where the reference has
    no such model.

    They are those of the program that the theory runs, which is the reference's own source.
    """
    if not model.family:
        return {}
    found: dict[str, str] = {}

    def walk(module, path, code, name):
        if type(module).__module__.startswith(_REFERENCE):
            code, name = module.forward.__code__, ""
        found[path] = _said(code, name) if code else ""
        for name, inner in vars(module).items():
            if isinstance(inner, Module):
                below = f"{path}.{name}".removeprefix(".").removesuffix(".0") + ".*" * (name == "0")
                walk(inner, below, code, name)

    walk(family(model.family)(model.replace(layers=1), Setup(batch=1, sequence=2)), "", None, "")
    return found


def _said(code, name):
    """File, the line that first calls a module of that name where one does, and the function."""
    lines, first = inspect.getsourcelines(code)
    called = (first + i for i, line in enumerate(lines) if re.search(rf"\bself\.{name}\b", line)) if name else iter(())
    line = next(called, None)
    place = PurePath(code.co_filename).name + (f", line {line}" if line else "")
    return f"reference/{place}: {code.co_qualname}"


def told(courses, code: Mapping[str, str]) -> dict:
    """{rows: [chapter, code]; of: the row of each operation; rest: the row of the rest between steps}, for the picture.

    Args:
        courses: `Steps`. code: as `codes` gives it.
    """
    rows: dict[tuple[str, str], int] = {}

    def row(moment, owner, parts):
        runs = moment in PEAKS and moment != "optimizer step"  # whose code no module is
        return rows.setdefault((chapter(moment, owner, parts), code.get(owner, "") if runs else ""), len(rows))

    of = [row(moment, owner, {part for part, _ in taken}) for _, moment, owner, taken, _ in courses.operations]
    rest = row("rest", "", ())
    return {"rows": list(map(list, rows)), "of": of, "rest": rest}
