"""Courses of steps as an explorer's picture runs them: the theory's operations, with sizes printed for the browser.

The controls of an explorer reach steps of a few dozen structures. Each is traced once, here; what the controls leave open are
letters in its sizes. The picture adds up the same operations in the browser that a budget adds up in Python.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from itertools import product
from types import SimpleNamespace
from typing import Any

from sympy import Min

from ..ask.choices import COMMON_OPTIMIZERS, MASTER_GRADIENTS, OPTIMIZER_IMPLS, PRECISIONS
from ..ask.setup import Setup
from ..catalog import Model
from ..formulas import bindings, symbols
from ..formulas.symbols import BY_SYMBOL
from ..step.course import MARKS, Repeat, backwards, middles, place_of
from ..theory import trace
from ..theory.letters import HELPERS, factor, text
from ..theory.schedule import nested, stretched
from ..theory.structure import Plan, structure
from ..theory.training import Step

_LETTER, _CALL = re.compile(r"\b[A-Za-z]\w*\b(?!\()"), re.compile(r"\b([a-z]+\()")
_HELPERS = HELPERS | {"down": HELPERS["whole"]}
#: A course's letter -> its name in code.
NAMES = {
    letter: BY_SYMBOL[z].name for letter, z in vars(symbols).items() if getattr(z, "is_Symbol", 0) and z in BY_SYMBOL
}


@dataclass(frozen=True)
class Size:
    """Text in letters, such as a course says, which is evaluated in Python and in the browser.

    Attributes:
        names: letter -> the name of its value; a letter that has none here is itself the name.
    """

    name: str
    text: str
    names: Mapping | None = None

    @cached_property
    def symbols(self):
        """What it needs values of, each with a `name`."""
        names = NAMES if self.names is None else self.names
        found = dict.fromkeys(names.get(letter, letter) for letter in _LETTER.findall(self.text))
        return [SimpleNamespace(name=name) for name in found]

    def _with(self, form):
        names = NAMES if self.names is None else self.names
        return _LETTER.sub(lambda letter: form.format(names.get(letter[0], letter[0])), self.text)

    @cached_property
    def javascript(self):
        """An arrow function of one object with these names as fields; what it calls is the picture's `helpers`."""
        return "(v) => " + _CALL.sub(r"helpers.\1", self._with("v.{}"))

    @cached_property
    def _code(self):
        return compile(self._with("{}"), self.name, "eval")

    def __call__(self, **values):
        """The value from those of the symbols by name."""
        if missing := [s.name for s in self.symbols if s.name not in values]:
            raise ValueError(f"{self.name}: no value for {', '.join(missing)}")
        return eval(self._code, {"__builtins__": {}} | _HELPERS, values)  # noqa: S307  text that a course wrote


#: The file of this folder that has the courses of explorers as they open: `tools/explorers.py` writes it.
FILE = "courses.json"
#: What a course follows from, by folder of the package: where any of it has changed, the file is not read.
SOURCES = {
    "step": None, "ask": ("choices.py", "setup.py"), "theory": None, "reference": None, "catalog": ("models.py", "weights.py"),
    "explore": ("courses.py",),
}  # fmt: skip


@cache
def fingerprint() -> str:
    """SHA-256 of the sources that courses follow from."""
    package, found = resources.files(__package__.rpartition(".")[0]), hashlib.sha256()
    for folder, names in SOURCES.items():
        there = {path.name: path for path in package.joinpath(folder).iterdir() if path.name.endswith(".py")}
        for name in sorted(names or there):
            found.update(there[name].read_bytes())
    return found.hexdigest()


#: What this process traced last, by its signature.
_TRACED: dict[str, dict] = {}


@cache
def _stored():
    file = resources.files(__package__).joinpath(FILE)
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


class Steps:
    """Steps as tables, which run in Python and in the browser.

    Args:
        by, update_by: names of values that choose a step's batches, and the optimizer's step with what it keeps.
        tables: as `Printer` makes them. names: letter -> name of its value, where it is not the notation's.

    Attributes:
        sizes: `Size`s. operations: (name, place in `PEAKS` or a phase's end, owner, taken, freed), the last two pairs of a part and
            the number of a size. bodies: (operations, block, segment): operations of one turn by number; of each loop the turn's
            number and the size that says how many turns came before it, or None. steps: (what stands between steps,
            items): numbers of bodies, or of what repeats (size of how often, whether turns go down, loop, items).
        batches, updates: values, joined by commas -> the number of a step.
    """

    #: Whether an operation's owner is said as it is, and not by the number of its block.
    named = False

    def __init__(self, by: Sequence, update_by: Sequence, tables: dict, names: Mapping | None = None):
        self.by, self.update_by, self.tables = tuple(by), tuple(update_by), tables
        self.sizes = [Size(f"size {i}", source, names) for i, source in enumerate(tables["sizes"])]
        self.operations, self.bodies, self.steps = tables["operations"], tables["bodies"], tables["steps"]
        self.batches, self.updates = tables["batches"], tables["updates"]

    def spec(self):
        """As the picture takes them: sizes by their names."""
        more = {"sizes": [size.name for size in self.sizes], "marks": MARKS, "named": self.named}
        return self.tables | {"by": self.by, "update_by": self.update_by} | more

    # Running, as picture.js does.

    def _chosen(self, values):
        """(bytes of every size, part -> live bytes between steps, items) at the symbols' values."""
        sizes, live, items = _Lazy(self.sizes, values), {}, []
        for cases, by in ((self.batches, self.by), (self.updates, self.update_by)):
            key = _joined(values[name] for name in by)
            if key not in cases:
                raise ValueError(f"courses: no step for {', '.join(by)}: {key}")
            rest, more = self.steps[cases[key]]
            _change(live, rest, sizes, 1)
            items += more
        return sizes, live, items

    def _walk(self, items, sizes, live, turns=None):
        """(operation, its body, turns) while `live` is as it runs: every turn of what repeats; without `turns` the first and the last."""
        for item in items:
            if isinstance(item, int):
                for o in self.bodies[item][0]:
                    operation = self.operations[o]
                    _change(live, operation[3], sizes, 1)
                    yield operation, self.bodies[item], turns
                    _change(live, operation[4], sizes, -1)
                continue
            (size, down, loop, inner), before = item, dict(live)
            times = sizes[size]
            if turns is not None:
                for turn in range(times):
                    yield from self._walk(inner, sizes, live, turns | {loop: times - 1 - turn if down else turn})
            elif times > 0:
                yield from self._walk(inner, sizes, live)
                if times > 1:
                    live.update({part: x + (x - before.get(part, 0)) * (times - 2) for part, x in live.items()})
                    yield from self._walk(inner, sizes, live)

    def peak(self, values):
        """(where, {part: bytes}) of the first operation with the most bytes."""
        sizes, live, items = self._chosen(values)
        top, found = 0, ("", {})
        for (_, where, _, taken, _), _, _ in self._walk(items, sizes, live):
            if taken and (total := sum(live.values())) > top:
                top, found = total, (where, dict(live))
        return found

    def unrolled(self, values):
        """(operations, {part: live bytes at each}, phase -> its place), block after block, as a budget's."""
        sizes, live, items = self._chosen(values)
        operations, course, marks = [("rest", "rest", "")], [dict(live)], {"rest": 0}
        for (name, where, owner, taken, _), body, turns in self._walk(items, sizes, live, {}):
            if name in MARKS:
                marks[name] = len(course)
            if taken or name in MARKS:
                owner = owner if self.named else owner.replace("*", self._block(body, turns, sizes, values))
                operations.append((name, where, owner))
                course.append(dict(live))
        operations.append(("rest", "rest", ""))
        course.append(course[0])
        parts = dict.fromkeys(part for parts in course for part in parts)
        return operations, {part: [live.get(part, 0) for live in course] for part in parts}, marks

    def _block(self, body, turns, sizes, values):
        numbers = [
            index + (turns.get(loop, 0) if after is None else sizes[after] - 1)
            for (index, after), loop in zip(body[1:], ("block", "segment"), strict=True)
        ]
        return str(numbers[0] + numbers[1] * values.get("segment", 1))


class Courses(Steps):
    """The steps that an explorer's controls reach: read from the file where it has them, else traced.

    Args:
        name: of the explorer. by: names of values that choose a step's batches; cases: these values -> (model, setup) that
            stand for all with them. update_by, updates: the same of the optimizer's step, and of what it keeps.
    """

    def __init__(self, name: str, by: Sequence, cases: Mapping, update_by: Sequence, updates: Mapping):
        models, said = {}, [fingerprint(), tuple(by), tuple(update_by)]
        for key, (model, setup) in (*cases.items(), *updates.items()):
            said.append((key, models.setdefault(model, len(models)), setup))
        self.signature = hashlib.sha256(repr((said, list(models))).encode()).hexdigest()
        found = _stored().get(name, {})
        if found.get("signature") != self.signature:
            if self.signature not in _TRACED:
                _TRACED.clear()  # the last is enough: who opens an explorer of a model opens it again
                _TRACED[self.signature] = _traced(cases, updates)
            found = _TRACED[self.signature] | {"signature": self.signature}
        super().__init__(by, update_by, found)


def _change(live, pieces, sizes, sign):
    for part, size in pieces:
        live[part] = live.get(part, 0) + sign * sizes[size]


class Printer:
    """Puts courses into tables, what is equal once."""

    def __init__(self):
        self._made = {"sizes": {}, "operations": {}, "bodies": {}, "steps": {}}
        self.batches, self.updates = {}, {}

    def tables(self):
        made = {name: list(table) for name, table in self._made.items()}
        return json.loads(json.dumps(made)) | {"batches": self.batches, "updates": self.updates}

    def put(self, table, entry):
        """The number of an entry in `sizes`, `operations`, `bodies` or `steps`, as `Steps` has them."""
        made = self._made[table]
        return made.setdefault(entry, len(made))

    def step(self, rest, items):
        """The number of a step of these pieces between steps, and items that are put into the tables."""
        stands = {where: (index, repeat) for where, index, repeat in middles(items)}
        return self.put("steps", (self.pieces(rest), self._nested(items, stands)))

    def pieces(self, pieces):
        """Pairs of a part and the number of a size."""
        return tuple((piece.part, self.put("sizes", self.amount(piece))) for piece in pieces)

    def amount(self, piece):
        """The text of a piece's bytes."""
        times = "".join(f"*({n})" for n in (text(piece.width), text(piece.count)) if n != "1")
        return f"({factor(piece.numbers)}){times}"

    def named(self, o):
        """An operation's name, place and owner."""
        owner = ".".join(["blocks", "*", *o.owner.split(".")[2:]]) if o.owner.startswith("blocks.") else o.owner
        return o.name, o.name if o.name in MARKS else place_of(o), owner

    def _nested(self, items, stands):
        """Numbers of bodies, each operations of one turn; of what repeats [number of times, whether turns go down, loop, items]."""
        found, turn, body = [], None, []

        def close():
            if body:
                found.append(self.put("bodies", (tuple(body), *self._turns(turn, stands))))
                body.clear()

        for i, item in enumerate(items):
            if isinstance(item, Repeat):
                close()
                times, down = self.put("sizes", text(item.times)), int(backwards(item, items[i + 1 :]))
                found.append((times, down, item.loop, self._nested(item.items, stands)))
                continue
            if item.place != turn:
                close()
            turn = item.place
            operation = *self.named(item), self.pieces(item.taken), self.pieces(item.freed)
            body.append(self.put("operations", operation))
        close()
        return tuple(found)

    def _turns(self, turn, stands):
        """Of block and segment the turn's number, and how many stood in before it, or nothing."""
        for name in ("block", "segment"):
            at = next((i for i, (loop, _) in enumerate(turn) if loop == name), None)
            index = 0 if at is None else turn[at][1]
            middle, repeat = (None, None) if at is None else stands.get((*turn[:at], name), (None, None))
            yield index, self.put("sizes", text(repeat.times)) if middle is not None and index > middle else None


def _traced(cases, updates):
    """The tables of these cases, and of these optimizers' steps."""
    printer, found = Printer(), {}  # found: a course's id -> it, so that it stays, and its number
    kept = "optimizer", "gradients"  # what stands between steps by what precision and optimizer choose
    for key, (model, setup) in cases.items():
        course = trace(model, setup)  # one for all setups that differ in letters alone
        if id(course) not in found:
            last = max(i for i, item in enumerate(course.items) if getattr(item, "name", "") == "after_backward")
            rest = [piece for piece in course.rest if piece.part not in kept]
            found[id(course)] = course, printer.step(rest, course.items[: last + 1])
        printer.batches[_joined(key)] = found[id(course)][1]
    for key, (model, setup) in updates.items():
        plan = Plan(model, setup)
        step = Step(model, setup, plan.segments, plan.chunks, 0, plan.loops["layer"].turns)
        rest = [piece for piece in step.rest() if piece.part in kept]
        items = nested(stretched(step.run(), plan.loops), plan.loops)
        printer.updates[_joined(key)] = printer.step(rest, items)
    return printer.tables()


# What the controls offer, in the values that choose a course.

#: The forms of a step's batches: fields of a setup. `moved` are gradients that go to an fp32 buffer at once.
FORMS: tuple[dict[str, Any], ...] = (
    {"precision": "fp32"}, {"precision": "bf16-mixed"}, {"precision": "fp16-mixed"}, {"precision": "bf16"},
    {"precision": "bf16-master", "master_gradients": "fp32"},
)  # fmt: skip
#: What the optimizer's step tells apart, in the order of the shared control.
PRECISIONS_OF_UPDATES: tuple[dict[str, Any], ...] = tuple(
    {"precision": p, "master_gradients": m} for p in PRECISIONS for m in (MASTER_GRADIENTS if p == "bf16-master" else ("bf16",))
)  # fmt: skip
#: Chunks of a loss in chunks.
CHUNKS = 8
#: A value that chooses a course -> for each of its numbers the fields of a setup.
AXES: dict[str, tuple[dict[str, Any], ...]] = {
    "form": FORMS,
    "eager": ({"attention": "flash"}, {"attention": "eager"}),
    "dropout": ({}, {"dropout": 0.1}),
    "lone": ({}, {"batch": 1}),
    "segmented": ({}, {"checkpointing": "full"}),
    "accumulated": ({}, {"accumulation": 4}),
    "chunked": ({}, {"loss": "chunked", "loss_chunks": CHUNKS, "sequence": 128}),
    "precision_no": PRECISIONS_OF_UPDATES,
    "optimizer_no": tuple({"optimizer": name} for name in COMMON_OPTIMIZERS),
    "impl_no": tuple({"optimizer_impl": name} for name in OPTIMIZER_IMPLS),
}
#: What chooses the batches of a step with the plain loss, and the optimizer's step; beside the model's `kind`.
BY, UPDATE_BY = ("form", "eager", "dropout", "lone"), ("precision_no", "optimizer_no", "impl_no")
#: 1 where there is one sequence: then attention that forms its scores copies less.
LONE = ("lone", 1 - Min(symbols.B - 1, 1))


def only(name: str, *numbers: int) -> dict[int, dict]:
    """Some numbers of a row of `AXES`, with their fields."""
    return {i: AXES[name][i] for i in numbers}


def cases(models: Sequence[Model], *names: str, **own: Mapping[int, Mapping]) -> tuple[tuple, dict]:
    """(names of values, `kind` first; every combination of their numbers -> (model, setup) that stands for it).

    Args:
        models: one of each kind. names: of rows in `AXES`. own: further rows, or those of that name with other numbers.
    """
    rows = {name: dict(enumerate(AXES[name])) for name in names} | own
    found = {}
    for (kind, model), *chosen in product(enumerate(models), *(row.items() for row in rows.values())):
        fields: dict[str, Any] = {"batch": 2, "sequence": 2}
        for _, more in chosen:
            fields |= more
        # In fp32 no kernel takes groups of heads, so flash attention of them forms its scores too.
        if fields.get("attention") != "eager" and model.heads == model.kv_heads:
            fields["batch"] = 2
        found[kind, *(number for number, _ in chosen)] = model, Setup(**fields)
    return ("kind", *rows), found


def numbers_of(setup) -> dict[str, int]:
    """The values by which a setup's precision, optimizer and implementation choose courses."""
    form = setup.precision if setup.master_gradients == "fp32" else setup.precision.replace("bf16-master", "bf16")
    return {
        "form": [each["precision"] for each in FORMS].index(form),
        "precision_no": PRECISIONS_OF_UPDATES.index({"precision": setup.precision, "master_gradients": setup.master_gradients}),
        "optimizer_no": COMMON_OPTIMIZERS.index(setup.optimizer),
        "impl_no": OPTIMIZER_IMPLS.index(setup.optimizer_impl),
    }  # fmt: skip


def kinds(models: Mapping[str, Model]) -> tuple[dict[str, dict], list[Model]]:
    """({name: a model's values with its `kind`}, the deepest model of each kind): models of a kind have one course."""
    found, options = {}, {}
    for name, model in models.items():
        key = structure(model, Setup(batch=2, sequence=2))[:3], min(model.layers, 2)
        kind = list(found).index(key) if key in found else len(found)
        found[key] = max(found.get(key, model), model, key=lambda m: m.layers)
        options[name] = bindings(model, None) | {"kind": kind}
    return options, list(found.values())


class _Lazy(dict):
    def __init__(self, sizes, values):
        super().__init__()
        self._sizes, self._values = sizes, values

    def __missing__(self, i):
        found = self[i] = self._sizes[i](**self._values)
        return found


def _joined(values):
    return ",".join(str(int(value)) for value in values)
