"""Courses of steps for the explorers' pictures: the theory's operations, with sizes printed as JavaScript.

An explorer's controls reach steps of a few dozen structures. Each structure is traced once, here; numbers that the controls
leave open are letters in its sizes. The browser sums the same operations as a budget does in Python.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from .beside import table

_LETTER, _CALL = re.compile(r"\b[A-Za-z]\w*\b(?!\()"), re.compile(r"\b([a-z]+\()")
_HELPERS = HELPERS | {"down": HELPERS["whole"]}
#: A course's letter -> its name in code.
NAMES = {
    letter: BY_SYMBOL[z].name for letter, z in vars(symbols).items() if getattr(z, "is_Symbol", 0) and z in BY_SYMBOL
}


@dataclass(frozen=True)
class Size:
    """A size as a text in letters, as a course has it, evaluated in Python and in the browser.

    Attributes:
        name: of the size. text: the expression. names: letter -> the name of its value, where the two differ.
    """

    name: str
    text: str
    names: Mapping = field(default_factory=lambda: NAMES)

    @cached_property
    def symbols(self):
        """What it needs values of, each with a `name`."""
        found = dict.fromkeys(self.names.get(letter, letter) for letter in _LETTER.findall(self.text))
        return [SimpleNamespace(name=name) for name in found]

    def _with(self, form):
        return _LETTER.sub(lambda letter: form.format(self.names.get(letter[0], letter[0])), self.text)

    @cached_property
    def javascript(self):
        """An arrow function of one object with these names as fields. The functions that it calls are the picture's `helpers`."""
        return "(v) => " + _CALL.sub(r"helpers.\1", self._with("v.{}"))

    @cached_property
    def _code(self):
        return compile(self._with("{}"), self.name, "eval")

    def __call__(self, **values):
        """The value from those of the symbols by name."""
        if missing := [s.name for s in self.symbols if s.name not in values]:
            raise ValueError(f"{self.name}: no value for {', '.join(missing)}")
        return eval(self._code, {"__builtins__": {}} | _HELPERS, values)  # noqa: S307  text that a course wrote


#: The file with the courses of the explorers as they open, beside this one; `tools/explorers.py` writes it.
FILE = "courses.json"
#: Folder -> files that courses depend on, None for all: where any of them has changed, the file is not read.
SOURCES = {
    "step": None, "ask": ("choices.py", "setup.py"), "theory": None, "reference": None, "catalog": ("models.py", "weights.py"),
    "explore": ("courses.py",),
}  # fmt: skip


@cache
def fingerprint() -> str:
    """SHA-256 of the sources that the courses depend on."""
    package, found = resources.files(__package__.rpartition(".")[0]), hashlib.sha256()
    for folder, names in SOURCES.items():
        there = {path.name: path for path in package.joinpath(folder).iterdir() if path.name.endswith(".py")}
        for name in sorted(names or there):
            found.update(there[name].read_bytes())
    return found.hexdigest()


#: The tables that this process traced last, by signature.
_TRACED: dict[str, dict] = {}


def _stored():
    return table(FILE)


class Steps:
    """Steps as tables, which run in Python and in the browser. Entries refer to one another by number.

    Args:
        by, update_by: names of the values that choose forward and backward, and the optimizer's step with its states.
        tables: as `Printer` makes them. names: letter -> name of its value, by default the notation's.

    Attributes:
        sizes: `Size`s.
        operations: (name, place in `PEAKS` or a phase's end, owner, taken, freed); taken and freed are pairs (part, size).
        bodies: (operations of one turn, block, segment); block and segment are (number of the turn, -1 for the last, size of how often
            an earlier turn repeats, or None).
        steps: (pieces that live between steps, items); an item is a body, or for a loop (size of how often, whether its turns
            count down, name of the loop, items).
        batches, updates: {values joined by commas: a step}.
    """

    def __init__(self, by: Sequence, update_by: Sequence, tables: dict, names: Mapping = NAMES):
        self.by, self.update_by, self.tables = tuple(by), tuple(update_by), tables
        self.sizes = [Size(f"size {i}", source, names) for i, source in enumerate(tables["sizes"])]
        self.operations, self.bodies, self.steps = tables["operations"], tables["bodies"], tables["steps"]
        self.batches, self.updates = tables["batches"], tables["updates"]

    def spec(self):
        """As the picture takes them: sizes by their names."""
        more = {"sizes": [size.name for size in self.sizes], "marks": MARKS}
        return self.tables | {"by": self.by, "update_by": self.update_by} | more

    # Running, as picture.js does.

    def _chosen(self, values):
        """(number of a size -> its bytes, part -> live bytes between steps, items) at the symbols' values."""
        size, live, items = cache(lambda i: self.sizes[i](**values)), {}, []
        for cases, by in ((self.batches, self.by), (self.updates, self.update_by)):
            key = _joined(values[name] for name in by)
            if key not in cases:
                raise ValueError(f"courses: no step for {', '.join(by)}: {key}")
            rest, more = self.steps[cases[key]]
            _change(live, rest, size, 1)
            items += more
        return size, live, items

    def _walk(self, items, size, live, turns=None):
        """(operation, its body, turns) one by one; `live` is then as while it runs. Without `turns` a loop runs its first and last turn."""
        for item in items:
            if isinstance(item, int):
                for o in self.bodies[item][0]:
                    operation = self.operations[o]
                    _change(live, operation[3], size, 1)
                    yield operation, self.bodies[item], turns
                    _change(live, operation[4], size, -1)
                continue
            (number, down, loop, inner), before = item, dict(live)
            times = size(number)
            if turns is not None:
                for turn in range(times):
                    yield from self._walk(inner, size, live, turns | {loop: times - 1 - turn if down else turn})
            elif times > 0:
                yield from self._walk(inner, size, live)
                if times > 1:
                    live.update({part: x + (x - before.get(part, 0)) * (times - 2) for part, x in live.items()})
                    yield from self._walk(inner, size, live)

    def peak(self, values):
        """(where, {part: bytes}) of the first operation with the most bytes."""
        size, live, items = self._chosen(values)
        top, found = 0, ("", {})
        for (_, where, _, taken, _), _, _ in self._walk(items, size, live):
            if taken and (total := sum(live.values())) > top:
                top, found = total, (where, dict(live))
        return found

    def unrolled(self, values):
        """(operations, {part: live bytes at each}, {phase: its place}) of the whole step, as a budget has them."""
        size, live, items = self._chosen(values)
        operations, course, marks = [("rest", "rest", "")], [dict(live)], {"rest": 0}
        for (name, where, owner, taken, _), body, turns in self._walk(items, size, live, {}):
            if name in MARKS:
                marks[name] = len(course)
            if taken or name in MARKS:
                operations.append((name, where, owner.replace("*", self._block(body, turns, size, values))))
                course.append(dict(live))
        operations.append(("rest", "rest", ""))
        course.append(course[0])
        parts = dict.fromkeys(part for parts in course for part in parts)
        return operations, {part: [live.get(part, 0) for live in course] for part in parts}, marks

    def _block(self, body, turns, size, values):
        if body[1][0] < 0:
            return str(values["layers"] - 1)
        numbers = [
            index + (turns.get(loop, 0) if after is None else size(after) - 1)
            for (index, after), loop in zip(body[1:], ("block", "segment"), strict=True)
        ]
        return str(numbers[0] + numbers[1] * values.get("segment", 1))


class Courses(Steps):
    """The steps that an explorer's controls reach: read from `FILE` where they are stored, else traced.

    Args:
        name: of the explorer. by: names of the values that choose forward and backward; cases: {these values: a model and a
            setup that stand for all with them}. update_by, updates: the same for the optimizer's step and its states.
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


def _change(live, pieces, size, sign):
    for part, number in pieces:
        live[part] = live.get(part, 0) + sign * size(number)


#: What stands between steps by what precision and optimizer choose.
_KEPT = "optimizer", "gradients"


class Printer:
    """Puts courses into the tables of `Steps`; equal entries are stored once."""

    def __init__(self):
        self._made = {"sizes": {}, "operations": {}, "bodies": {}, "steps": {}}
        self.batches, self.updates = {}, {}
        self._traced = {}  # a course's id -> it, so that it stays, and its number

    def batch(self, key: str, model: Model, setup: Setup) -> None:
        """Put forward and backward of a step under a key, and what stands between steps beside them."""
        course = trace(model, setup)  # one for all setups that differ in letters alone
        if id(course) not in self._traced:
            last = max(i for i, item in enumerate(course.items) if getattr(item, "name", "") == "after_backward")
            rest = [piece for piece in course.rest if piece.part not in _KEPT]
            self._traced[id(course)] = course, self.step(rest, course.items[: last + 1])
        self.batches[key] = self._traced[id(course)][1]

    def update(self, key: str, model: Model, setup: Setup) -> None:
        """Put the optimizer's step under a key, and the states and gradients that stand between steps."""
        plan = Plan(model, setup)
        step = Step(model, setup, plan.segments, plan.chunks, 0, plan.stepped, dense=plan.dense)
        rest = [piece for piece in step.rest() if piece.part in _KEPT]
        self.updates[key] = self.step(rest, nested(stretched(step.run(), plan.loops), plan.loops))

    def tables(self):
        made = {name: list(table) for name, table in self._made.items()}
        return json.loads(json.dumps(made)) | {"batches": self.batches, "updates": self.updates}

    def put(self, table, entry):
        """The number of an entry in a table: `sizes`, `operations`, `bodies` or `steps`."""
        made = self._made[table]
        return made.setdefault(entry, len(made))

    def step(self, rest, items):
        """The number of a step with these pieces between steps, and these items, which are put into the tables."""
        stands = {where: (index, repeat) for where, index, repeat in middles(items)}
        return self.put("steps", (self.pieces(rest), self._nested(items, stands)))

    def pieces(self, pieces):
        """(part, number of a size) of each piece."""
        return tuple((piece.part, self.put("sizes", self.amount(piece))) for piece in pieces)

    def amount(self, piece):
        """A piece's bytes, as a text in letters."""
        times = "".join(f"*({n})" for n in (text(piece.width), text(piece.count)) if n != "1")
        return f"({factor(piece.numbers)}){times}"

    def named(self, o):
        """An operation's name, place and owner."""
        owner = ".".join(["blocks", "*", *o.owner.split(".")[2:]]) if o.owner.startswith("blocks.") else o.owner
        return o.name, o.name if o.name in MARKS else place_of(o), owner

    def _nested(self, items, stands):
        """The items of `Steps`: numbers of bodies, and loops."""
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
        """For block and segment: (the turn's number, number of the size of how often an earlier turn repeats, or None).

        Where neither has begun the block's number is -1: what FSDP gathers before backward enters a block is the last one.
        """
        outside = not {"block", "segment"} & dict(turn).keys()
        for name in ("block", "segment"):
            at = next((i for i, (loop, _) in enumerate(turn) if loop == name), None)
            index = turn[at][1] if at is not None else -1 if outside and name == "block" else 0
            middle, repeat = (None, None) if at is None else stands.get((*turn[:at], name), (None, None))
            yield index, self.put("sizes", text(repeat.times)) if middle is not None and index > middle else None


def _traced(cases, updates):
    """The tables of these cases and these optimizers' steps."""
    printer = Printer()
    for key, case in cases.items():
        printer.batch(_joined(key), *case)
    for key, case in updates.items():
        printer.update(_joined(key), *case)
    return printer.tables()


# What the controls offer, in the values that choose a course.

#: The forms of forward and backward, as fields of a setup.
FORMS: tuple[dict[str, Any], ...] = (
    {"precision": "fp32"}, {"precision": "bf16-mixed"}, {"precision": "fp16-mixed"}, {"precision": "bf16"},
    {"precision": "bf16-master", "master_gradients": "fp32"},
)  # fmt: skip
#: The precisions that the optimizer's step distinguishes, in the order of the shared control.
PRECISIONS_OF_UPDATES: tuple[dict[str, Any], ...] = tuple(
    {"precision": p, "master_gradients": m} for p in PRECISIONS for m in (MASTER_GRADIENTS if p == "bf16-master" else ("bf16",))
)  # fmt: skip
#: Chunks of the chunked loss.
CHUNKS = 8
#: Name of a value that chooses a course -> the fields of a setup for each of its numbers.
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
#: The values that choose forward and backward with the plain loss, and the optimizer's step, beside the model's `kind`.
BY, UPDATE_BY = ("form", "eager", "dropout", "lone"), ("precision_no", "optimizer_no", "impl_no")
#: 1 for one sequence: then eager attention copies less.
LONE = ("lone", 1 - Min(symbols.B - 1, 1))


def only(name: str, *numbers: int) -> dict[int, dict]:
    """Some numbers of a row of `AXES`, with their fields of a setup."""
    return {i: AXES[name][i] for i in numbers}


def cases(models: Sequence[Model], *names: str, **own: Mapping[int, Mapping]) -> tuple[tuple, dict]:
    """(names of values, `kind` first; {every combination of their numbers: the (model, setup) that stands for it}).

    Args:
        models: one of each kind. names: rows of `AXES`. own: further rows, or rows of `AXES` with other numbers.
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
    """The values by which a setup's precision, optimizer and implementation choose its course."""
    form = setup.precision if setup.master_gradients == "fp32" else setup.precision.replace("bf16-master", "bf16")
    return {
        "form": [each["precision"] for each in FORMS].index(form),
        "precision_no": PRECISIONS_OF_UPDATES.index({"precision": setup.precision, "master_gradients": setup.master_gradients}),
        "optimizer_no": COMMON_OPTIMIZERS.index(setup.optimizer),
        "impl_no": OPTIMIZER_IMPLS.index(setup.optimizer_impl),
    }  # fmt: skip


def kinds(models: Mapping[str, Model]) -> tuple[dict[str, dict], list[Model]]:
    """({name: a model's values with its `kind`}, the deepest model of each kind). Models of one kind have the same course."""
    found, options = {}, {}
    for name, model in models.items():
        key = structure(model, Setup(batch=2, sequence=2))[:3], min(model.layers, 2)
        kind = list(found).index(key) if key in found else len(found)
        found[key] = max(found.get(key, model), model, key=lambda m: m.layers)
        options[name] = bindings(model, None) | {"kind": kind}
    return options, list(found.values())


def _joined(values):
    return ",".join(str(int(value)) for value in values)
