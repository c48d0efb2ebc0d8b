"""Courses of steps as an explorer's picture runs them: the theory's operations, with sizes printed for the browser.

The controls of an explorer reach steps of a few dozen structures. Each is traced once, here; what the controls leave open are
letters in its sizes. The picture adds up the same operations in the browser that a budget adds up in Python.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib import resources
from typing import Any

from sympy import Min

from ..catalog import Model
from ..formulas import SYMBOLS, bindings, symbols
from ..setup import COMMON_OPTIMIZERS, MASTER_GRADIENTS, OPTIMIZER_IMPLS, PRECISIONS, Setup
from ..theory import MARKS, Repeat, place_of, trace
from ..theory.letters import factor, text
from ..theory.schedule import backwards, middles, nested, stretched
from ..theory.structure import Plan, structure
from ..theory.training import Step

_LETTER = re.compile(r"\b[A-Za-z]\w*\b(?!\()")
#: A course's letter -> its name in code.
NAMES = {
    letter: next(entry.name for entry in SYMBOLS.values() if entry.symbol == getattr(symbols, letter))
    for letter in (
        "B", "S", "L", "H", "A", "A_kv", "D", "F", "V", "N", "N_max", "W", "E", "E_t", "F_e", "K", "n_c", "n_a", "w", "w_s",
        "c", "s_b", "r", "m_w", "G", "R", "P", "r_A", "w_A",
    )
}  # fmt: skip
_HELPERS = {"up": lambda a, b: -(-a // b), "whole": lambda a, b: a // b, "least": min, "most": max}


@dataclass(frozen=True)
class Size:
    """A size or a number of times that a course says, as a formula for pictures: the text is the course's own."""

    name: str
    text: str

    @cached_property
    def symbols(self):
        """The entries of the notation that it uses."""
        return [SYMBOLS[NAMES[letter]] for letter in dict.fromkeys(_LETTER.findall(self.text))]

    @cached_property
    def javascript(self):
        """An arrow function of one object with the symbols' names as fields; what it calls is the picture's `helpers`."""
        source = _LETTER.sub(lambda found: f"v.{NAMES[found[0]]}", self.text)
        return "(v) => " + re.sub(r"\b[a-z]+\(", lambda call: f"helpers.{call[0]}", source)

    @cached_property
    def _code(self):
        return compile(_LETTER.sub(lambda found: NAMES[found[0]], self.text), self.name, "eval")

    def __call__(self, **values):
        """The value from the symbols' values by name in code."""
        if missing := [s.name for s in self.symbols if s.name not in values]:
            raise ValueError(f"{self.name}: no value for {', '.join(missing)}")
        return eval(self._code, {"__builtins__": {}} | _HELPERS, values)  # noqa: S307  a course's own text


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
    ".": ("choices.py", "setup.py"), "theory": None, "catalog": ("models.py", "weights.py"), "explore": ("courses.py",),
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


class Courses:
    """The steps that an explorer's controls reach: read from the file where it has them, else traced.

    Args:
        name: of the explorer. by: names of values that choose a step's batches; cases: these values -> (model, setup) that
            stand for all with them. update_by, updates: the same of the optimizer's step, and of what it keeps.
        anew: whether to trace them in any case.

    Attributes:
        sizes: `Size`s. operations: (name, place in `PEAKS` or a phase's end, owner, taken, freed), the last two pairs of a part and
            the number of a size. bodies: (operations, block, segment): operations of one turn by number; of each loop the turn's
            number and the size that says how many turns came before it, or None. steps: what stands between steps, and items:
            numbers of bodies, or of what repeats [size of how often, whether turns go down, loop, items].
        batches, updates: values, joined by commas -> the number of a step.
    """

    def __init__(
        self, name: str, by: Sequence, cases: Mapping, update_by: Sequence, updates: Mapping, anew: bool = False
    ):
        self.name, self.by, self.update_by = name, tuple(by), tuple(update_by)
        self.signature = self._signature(cases, updates)
        found = _stored().get(name, {})
        if anew or found.get("signature") != self.signature:
            found = None if anew else _TRACED.get(self.signature)
            if found is None:
                _TRACED.clear()  # the last is enough: who opens an explorer of a model opens it again
                found = _TRACED[self.signature] = _Printer(cases, updates).tables()
        self._tables = found | {"signature": self.signature}
        self.sizes = [Size(f"size {i}", source) for i, source in enumerate(found["sizes"])]
        self.operations, self.bodies, self.steps = found["operations"], found["bodies"], found["steps"]
        self.batches, self.updates = found["batches"], found["updates"]

    def _signature(self, cases, updates):
        models = {}
        said = [fingerprint(), self.by, self.update_by]
        for key, (model, setup) in (*cases.items(), *updates.items()):
            said.append((key, models.setdefault(model, len(models)), setup))
        return hashlib.sha256(repr((said, list(models))).encode()).hexdigest()

    @property
    def names(self):
        """The names of values that choose a course."""
        return (*self.by, *self.update_by)

    def tables(self) -> dict:
        """As the file has it."""
        return self._tables

    def spec(self):
        """What the picture needs to know."""
        return {
            "by": self.by,
            "update_by": self.update_by,
            "batches": self.batches,
            "updates": self.updates,
            "steps": self.steps,
            "operations": self.operations,
            "bodies": self.bodies,
            "sizes": [size.name for size in self.sizes],
            "marks": MARKS,
        }

    # Running, as picture.js does.

    def _chosen(self, values):
        """(bytes of every size, part -> live bytes between steps, items) at the symbols' values."""
        sizes, live, items = _Lazy(self.sizes, values), {}, []
        for cases, by in ((self.batches, self.by), (self.updates, self.update_by)):
            key = _joined(values[name] for name in by)
            if key not in cases:
                raise ValueError(f"courses: no step for {', '.join(by)}: {key}")
            step = self.steps[cases[key]]
            for part, size in step["rest"]:
                live[part] = live.get(part, 0) + sizes[size]
            items += step["items"]
        return sizes, live, items

    def peak(self, values):
        """(where, {part: bytes}) of the first operation with the most bytes."""
        sizes, live, items = self._chosen(values)
        top, found = 0, ("", {})

        def walk(items):
            nonlocal top, found
            for item in items:
                if isinstance(item, int):
                    for o in self.bodies[item][0]:
                        _, where, _, taken, freed = self.operations[o]
                        for part, size in taken:
                            live[part] = live.get(part, 0) + sizes[size]
                        if taken and (total := sum(live.values())) > top:
                            top, found = total, (where, dict(live))
                        for part, size in freed:
                            live[part] -= sizes[size]
                    continue
                times, before = sizes[item[0]], dict(live)
                if times > 0:
                    walk(item[3])
                if times > 1:
                    for part in live:
                        live[part] += (live[part] - before.get(part, 0)) * (times - 2)
                    walk(item[3])

        walk(items)
        return found

    def unrolled(self, values):
        """(operations, {part: live bytes at each}, phase -> its place), block after block, as a budget's."""
        sizes, live, items = self._chosen(values)
        operations, course, marks = [("rest", "rest", "")], [dict(live)], {"rest": 0}

        def walk(items, turns):
            for item in items:
                if not isinstance(item, int):
                    times = sizes[item[0]]
                    for turn in range(times):
                        walk(item[3], turns | {item[2]: times - 1 - turn if item[1] else turn})
                    continue
                ran, block, segment = self.bodies[item]
                numbers = [
                    index + (turns.get(loop, 0) if after is None else sizes[after] - 1)
                    for (index, after), loop in ((block, "block"), (segment, "segment"))
                ]
                number = numbers[0] + numbers[1] * values.get("segment", 1)
                for o in ran:
                    name, where, owner, taken, freed = self.operations[o]
                    for part, size in taken:
                        live[part] = live.get(part, 0) + sizes[size]
                    if name in MARKS:
                        marks[name] = len(course)
                    if taken or name in MARKS:
                        operations.append((name, where, owner.replace("*", str(number))))
                        course.append(dict(live))
                    for part, size in freed:
                        live[part] -= sizes[size]

        walk(items, {})
        operations.append(("rest", "rest", ""))
        course.append(course[0])
        parts = dict.fromkeys(part for parts in course for part in parts)
        return operations, {part: [live.get(part, 0) for live in course] for part in parts}, marks


#: What stands between steps by what precision and optimizer choose: states, and a lasting buffer of gradients.
_KEPT_BY_UPDATES = ("optimizer", "gradients")


class _Printer:
    """Puts courses into tables, what is equal once."""

    def __init__(self, cases, updates):
        self._sizes, self._operations, self._bodies, self._steps = {}, {}, {}, {}
        found = {}
        self.batches, self.updates = {}, {}
        for key, (model, setup) in cases.items():
            rest, items = _items(model, setup)
            if id(items) not in found:
                found[id(items)] = self._step([piece for piece in rest if piece.part not in _KEPT_BY_UPDATES], items)
            self.batches[_joined(key)] = found[id(items)]
        for key, (model, setup) in updates.items():
            rest, items = _update(model, setup)
            self.updates[_joined(key)] = self._step([piece for piece in rest if piece.part in _KEPT_BY_UPDATES], items)

    def tables(self):
        """All of it, as JSON holds it."""
        bodies = [[list(ran), list(block), list(segment)] for ran, block, segment in self._bodies]
        return {
            "sizes": list(self._sizes), "operations": _thawed(self._operations), "bodies": bodies,
            "steps": [json.loads(step) for step in self._steps], "batches": self.batches, "updates": self.updates,
        }  # fmt: skip

    def _step(self, rest, items):
        printed = json.dumps({"rest": self._pieces(rest), "items": self._printed(items)})
        return self._steps.setdefault(printed, len(self._steps))

    def _size(self, source):
        return self._sizes.setdefault(source, len(self._sizes))

    def _pieces(self, pieces):
        found = []
        for piece in pieces:
            count = "" if text(piece.count) == "1" else f"*({text(piece.count)})"
            width = "" if text(piece.width) == "1" else f"*({text(piece.width)})"
            found.append([piece.part, self._size(f"({factor(piece.numbers)}){width}{count}")])
        return found

    def _printed(self, items):
        return self._nested(items, {where: (index, repeat) for where, index, repeat in middles(items)})

    def _nested(self, items, stands):
        """Numbers of bodies, each operations of one turn; of what repeats [number of times, whether turns go down, loop, items]."""
        found, turn, body = [], None, []

        def close():
            if body:
                found.append(self._body(turn, body, stands))
                body.clear()

        for i, item in enumerate(items):
            if isinstance(item, Repeat):
                close()
                down = backwards(item, items[i + 1 :])
                found.append([self._size(text(item.times)), int(down), item.loop, self._nested(item.items, stands)])
                continue
            if item.place != turn:
                close()
            turn = item.place
            body.append(self._operation(item))
        close()
        return found

    def _operation(self, o):
        owner = ".".join(["blocks", "*", *o.owner.split(".")[2:]]) if o.owner.startswith("blocks.") else o.owner
        where = o.name if o.name in MARKS else place_of(o)
        printed = o.name, where, owner, _frozen(self._pieces(o.taken)), _frozen(self._pieces(o.freed))
        return self._operations.setdefault(printed, len(self._operations))

    def _body(self, turn, operations, stands):
        """(operations, block, segment): of each loop the turn's number, and how many stood in before it, or nothing."""
        turns = []
        for name in ("block", "segment"):
            at = next((i for i, (loop, _) in enumerate(turn) if loop == name), None)
            index = 0 if at is None else turn[at][1]
            middle, repeat = (None, None) if at is None else stands.get((*turn[:at], name), (None, None))
            turns.append((index, self._size(text(repeat.times)) if middle is not None and index > middle else None))
        return self._bodies.setdefault((tuple(operations), *turns), len(self._bodies))


# What the controls offer, in the values that choose a course.

#: What a step's batches tell apart of precisions: the fields of a setup. `moved` are gradients that go to an fp32 buffer at once.
FORMS: tuple[dict[str, Any], ...] = (
    {"precision": "fp32"}, {"precision": "bf16-mixed"}, {"precision": "fp16-mixed"}, {"precision": "bf16"},
    {"precision": "bf16-master", "master_gradients": "fp32"},
)  # fmt: skip
#: What the optimizer's step tells apart, in the order of the shared control.
PRECISIONS_OF_UPDATES = tuple(
    {"precision": p, "master_gradients": m} for p in PRECISIONS for m in (MASTER_GRADIENTS if p == "bf16-master" else ("bf16",))
)  # fmt: skip
FORM_NUMBERS, UPDATE_NUMBERS = range(len(FORMS)), range(len(PRECISIONS_OF_UPDATES))
#: 1 where there is one sequence: then attention that forms its scores copies less.
LONE = ("lone", 1 - Min(symbols.B - 1, 1))


def form_of(setup) -> int:
    """The number of a setup's form among `FORMS`."""
    if setup.precision == "bf16-master":
        return 4 if setup.master_gradients == "fp32" else 3
    return [form["precision"] for form in FORMS].index(setup.precision)


def numbers_of(setup) -> dict[str, int]:
    """The values by which a setup's precision, optimizer and implementation choose courses."""
    precision = {"precision": setup.precision, "master_gradients": setup.master_gradients}
    return {
        "form": form_of(setup),
        "precision_no": PRECISIONS_OF_UPDATES.index(precision),
        "optimizer_no": COMMON_OPTIMIZERS.index(setup.optimizer),
        "impl_no": OPTIMIZER_IMPLS.index(setup.optimizer_impl),
    }


def kinds(models: Mapping[str, Model]) -> tuple[dict[str, dict], list[Model]]:
    """({name: a model's values with its `kind`}, the deepest model of each kind): models of a kind have one course."""
    found, options = {}, {}
    for name, model in models.items():
        key = structure(model, Setup(batch=2, sequence=2))[:3], min(model.layers, 2)
        kind = list(found).index(key) if key in found else len(found)
        found[key] = max(found.get(key, model), model, key=lambda m: m.layers)
        options[name] = bindings(model, None) | {"kind": kind}
    return options, list(found.values())


def batches_of(models: Sequence[Model], dropouts=(0, 1), forms=FORM_NUMBERS, **also) -> dict:
    """Cases by kind, form, `eager`, `dropout` and `lone`, with two sequences or one; `also`: more fields of the setup."""
    return {
        (kind, form, eager, dropout, lone): (
            model,
            Setup(
                **FORMS[form], batch=1 if lone and _scores(model, eager) else 2, sequence=2,
                attention="eager" if eager else "flash", dropout=0.1 if dropout else 0.0, **also,
            ),
        )
        for kind, model in enumerate(models) for form in forms
        for eager in (0, 1) for dropout in dropouts for lone in (0, 1)
    }  # fmt: skip


def _scores(model, eager):
    """Whether attention may form its scores: eager it does, and in fp32 where no kernel takes groups of heads."""
    return eager or model.heads != model.kv_heads


def updates_of(models: Sequence[Model], precisions=UPDATE_NUMBERS, optimizers=COMMON_OPTIMIZERS, **also) -> dict:
    """Cases of the optimizer's step by kind, precision, optimizer and implementation."""
    return {
        (kind, precision, COMMON_OPTIMIZERS.index(optimizer), impl): (
            model,
            Setup(**PRECISIONS_OF_UPDATES[precision], optimizer=optimizer, optimizer_impl=name, sequence=2, **also),
        )
        for kind, model in enumerate(models) for precision in precisions
        for optimizer in optimizers for impl, name in enumerate(OPTIMIZER_IMPLS)
    }  # fmt: skip


BY, UPDATE_BY = ("kind", "form", "eager", "dropout", "lone"), ("kind", "precision_no", "optimizer_no", "impl_no")


class _Lazy:
    """Sizes at some values, each worked out when it is asked for."""

    def __init__(self, sizes, values):
        self._sizes, self._values, self._found = sizes, values, {}

    def __getitem__(self, i):
        if i not in self._found:
            self._found[i] = self._sizes[i](**self._values)
        return self._found[i]


def _joined(values):
    return ",".join(str(int(value)) for value in values)


def _thawed(operations):
    return json.loads(json.dumps(list(operations)))


def _frozen(pairs):
    return tuple(map(tuple, pairs))
