"""Courses of steps as an explorer's picture runs them: the theory's operations, with sizes printed for the browser.

The controls of an explorer reach steps of a few dozen structures. Each is traced once, here; what the controls leave open are
letters in its sizes. The picture adds up the same operations in the browser that a budget adds up in Python.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib import resources
from itertools import product
from typing import Any

from sympy import Min

from ..ask.choices import COMMON_OPTIMIZERS, MASTER_GRADIENTS, OPTIMIZER_IMPLS, PRECISIONS
from ..ask.setup import Setup
from ..catalog import Model
from ..formulas import bindings, symbols
from ..step.course import MARKS, Repeat, backwards, middles, place_of
from ..theory import trace
from ..theory.letters import factor, text
from ..theory.schedule import nested, stretched
from ..theory.structure import Plan, structure
from ..theory.training import Step
from .sizes import Size


@lru_cache(2048)
def _items(model, setup):
    """(pieces that stand between steps, operations of all batches) of a step."""
    course = trace(model, setup)
    last = max(i for i, item in enumerate(course.items) if getattr(item, "name", "") == "after_backward")
    return course.rest, course.items[: last + 1]


@lru_cache(2048)
def _update(model, setup):
    """(pieces that stand between steps, operations of the optimizer's step)."""
    plan = Plan(model, setup)
    step = Step(model, setup, plan.segments, plan.chunks, 0, plan.loops["layer"].turns)
    return step.rest(), nested(stretched(step.run(), plan.loops), plan.loops)


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


@cache
def _stored():
    file = resources.files(__package__).joinpath(FILE)
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


#: What this process traced last, by its signature.
_TRACED: dict[str, dict] = {}


class Steps:
    """Steps as tables, which run in Python and in the browser.

    Args:
        by, update_by: names of values that choose a step's batches, and the optimizer's step with what it keeps.
        tables: as `Printer` makes them. names: letter -> name of its value, where it is not the notation's.

    Attributes:
        sizes: `Size`s. operations: (name, place in `PEAKS` or a phase's end, owner, taken, freed), the last two pairs of a part and
            the number of a size. bodies: (operations, block, segment): operations of one turn by number; of each loop the turn's
            number and the size that says how many turns came before it, or None. steps: what stands between steps, and items:
            numbers of bodies, or of what repeats [size of how often, whether turns go down, loop, items].
        batches, updates: values, joined by commas -> the number of a step.
    """

    #: Whether an operation's owner is said as it is, and not by the number of its block.
    named = False

    def __init__(self, by: Sequence, update_by: Sequence, tables: dict, names: Mapping | None = None):
        self.by, self.update_by, self._tables = tuple(by), tuple(update_by), tables
        self.sizes = [Size(f"size {i}", source, names) for i, source in enumerate(tables["sizes"])]
        self.operations, self.bodies, self.steps = tables["operations"], tables["bodies"], tables["steps"]
        self.batches, self.updates = tables["batches"], tables["updates"]

    @property
    def names(self):
        """The names of values that choose a course."""
        return (*self.by, *self.update_by)

    def tables(self) -> dict:
        """As the file has it."""
        return self._tables

    def spec(self):
        kept = ("batches", "updates", "steps", "operations", "bodies")
        sizes = [size.name for size in self.sizes]
        more = {"named": True} if self.named else {}
        return (
            {"by": self.by, "update_by": self.update_by}
            | {n: self._tables[n] for n in kept}
            | {"sizes": sizes, "marks": MARKS}
            | more
        )

    # Running, as picture.js does.

    def _chosen(self, values):
        """(bytes of every size, part -> live bytes between steps, items) at the symbols' values."""
        sizes, live, items = _Lazy(self.sizes, values), {}, []
        for cases, by in ((self.batches, self.by), (self.updates, self.update_by)):
            key = _joined(values[name] for name in by)
            if key not in cases:
                raise ValueError(f"courses: no step for {', '.join(by)}: {key}")
            step = self.steps[cases[key]]
            _change(live, step["rest"], sizes, 1)
            items += step["items"]
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
                operations.append(
                    (name, where, owner if self.named else owner.replace("*", self._block(body, turns, sizes, values)))
                )
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
        anew: whether to trace them in any case.
    """

    def __init__(
        self, name: str, by: Sequence, cases: Mapping, update_by: Sequence, updates: Mapping, anew: bool = False
    ):
        models, said = {}, [fingerprint(), tuple(by), tuple(update_by)]
        for key, (model, setup) in (*cases.items(), *updates.items()):
            said.append((key, models.setdefault(model, len(models)), setup))
        self.name, self.signature = name, hashlib.sha256(repr((said, list(models))).encode()).hexdigest()
        found = _stored().get(name, {})
        if anew or found.get("signature") != self.signature:
            found = None if anew else _TRACED.get(self.signature)
            if found is None:
                _TRACED.clear()  # the last is enough: who opens an explorer of a model opens it again
                found = _TRACED[self.signature] = _Traced(cases, updates).tables()
        super().__init__(by, update_by, found | {"signature": self.signature})


def _change(live, pieces, sizes, sign):
    for part, size in pieces:
        live[part] = live.get(part, 0) + sign * sizes[size]


class Printer:
    """Puts courses into tables, what is equal once."""

    def __init__(self):
        self._sizes, self._operations, self._bodies, self._steps = {}, {}, {}, {}
        self.batches, self.updates = {}, {}

    def tables(self):
        """All of it, as JSON holds it."""
        made = {"sizes": list(self._sizes), "operations": list(self._operations), "bodies": list(self._bodies)}
        steps = [json.loads(step) for step in self._steps]
        return json.loads(json.dumps(made)) | {"steps": steps, "batches": self.batches, "updates": self.updates}

    def step(self, rest, items):
        """The number of a step of these pieces between steps, and items that are put into the tables."""
        return self.put(
            self.pieces(rest), self._nested(items, {where: (index, repeat) for where, index, repeat in middles(items)})
        )

    def put(self, rest, items):
        """The number of a step of what is in the tables."""
        return _number(self._steps, json.dumps({"rest": rest, "items": items}))

    def size(self, source):
        """The number of a size."""
        return _number(self._sizes, source)

    def operation(self, name, where, owner, taken, freed):
        """The number of an operation."""
        return _number(self._operations, (name, where, owner, taken, freed))

    def body(self, operations, block=(0, None), segment=(0, None)):
        """The number of a body."""
        return _number(self._bodies, (tuple(operations), block, segment))

    def pieces(self, pieces):
        """Pairs of a part and the number of a size."""
        return tuple((piece.part, self.size(self.amount(piece))) for piece in pieces)

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
                found.append(self.body(body, *self._turns(turn, stands)))
                body.clear()

        for i, item in enumerate(items):
            if isinstance(item, Repeat):
                close()
                down = backwards(item, items[i + 1 :])
                found.append([self.size(text(item.times)), int(down), item.loop, self._nested(item.items, stands)])
                continue
            if item.place != turn:
                close()
            turn = item.place
            body.append(self.operation(*self.named(item), self.pieces(item.taken), self.pieces(item.freed)))
        close()
        return found

    def _turns(self, turn, stands):
        """Of block and segment the turn's number, and how many stood in before it, or nothing."""
        for name in ("block", "segment"):
            at = next((i for i, (loop, _) in enumerate(turn) if loop == name), None)
            index = 0 if at is None else turn[at][1]
            middle, repeat = (None, None) if at is None else stands.get((*turn[:at], name), (None, None))
            yield index, self.size(text(repeat.times)) if middle is not None and index > middle else None


#: What stands between steps by what precision and optimizer choose: states, and a lasting buffer of gradients.
_KEPT_BY_UPDATES = ("optimizer", "gradients")


class _Traced(Printer):
    """The tables of these cases, and of these optimizers' steps."""

    def __init__(self, cases, updates):
        super().__init__()
        found = {}
        for key, (model, setup) in cases.items():
            rest, items = _items(model, setup)
            if id(items) not in found:
                found[id(items)] = self.step([piece for piece in rest if piece.part not in _KEPT_BY_UPDATES], items)
            self.batches[_joined(key)] = found[id(items)]
        for key, (model, setup) in updates.items():
            rest, items = _update(model, setup)
            self.updates[_joined(key)] = self.step([piece for piece in rest if piece.part in _KEPT_BY_UPDATES], items)


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
    """(names of values, every combination of their numbers -> (model, setup) that stands for all steps with them), `kind` first.

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
    """Sizes at some values, each worked out when it is asked for."""

    def __init__(self, sizes, values):
        super().__init__()
        self._sizes, self._values = sizes, values

    def __missing__(self, i):
        found = self[i] = self._sizes[i](**self._values)
        return found


def _joined(values):
    return ",".join(str(int(value)) for value in values)


def _number(table, entry):
    return table.setdefault(entry, len(table))
