"""Where an operation of a step is from: the chapter that derives what it takes, and the function of the reference that runs it."""

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


def codes(model: Model | None) -> dict[str, str]:
    """Owner, a block's number as `*` -> the function of the reference that calls it or is it; empty where the reference has no such model.

    They are those of the program that the theory runs, which is the reference's own source.
    """
    if model is None or not model.family:
        return {}
    found: dict[str, str] = {}

    def walk(module, path, said):
        if type(module).__module__.startswith(_REFERENCE):
            code = module.forward.__code__
            said = f"reference/{PurePath(code.co_filename).name}: {code.co_qualname}"
        found[path] = said
        for name, inner in vars(module).items():
            if isinstance(inner, Module):
                walk(inner, f"{path}.{name}".removeprefix(".").removesuffix(".0") + ".*" * (name == "0"), said)

    walk(family(model.family)(model.replace(layers=1), Setup(batch=1, sequence=2)), "", "")
    return found


def told(courses, code: Mapping[str, str]) -> dict:
    """{rows: [chapter, code]; of: the row of each operation; rest: the row of the rest between steps}, for the picture.

    Args:
        courses: `Steps`. code: as `codes` gives it.
    """
    if courses.named:
        return {"rows": [[table(_TABLE)["own"], ""]], "of": [0] * len(courses.operations), "rest": 0}
    rows: dict[tuple[str, str], int] = {}

    def row(moment, owner, parts):
        runs = moment in PEAKS and moment != "optimizer step"  # whose code no module is
        return rows.setdefault((chapter(moment, owner, parts), code.get(owner, "") if runs else ""), len(rows))

    of = [row(moment, owner, {part for part, _ in taken}) for _, moment, owner, taken, _ in courses.operations]
    rest = row("rest", "", ())
    return {"rows": list(map(list, rows)), "of": of, "rest": rest}
