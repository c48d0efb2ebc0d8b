"""What is derived, and its dry runs."""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module

import torch

from ..ask.choices import LIMITS
from ..ask.setup import Setup
from ..catalog import Model
from ..dryrun import Trace, dry_run
from ..dryrun.hugging_face import DEPTHS
from ..dryrun.tracker import is_loss
from ..step.amount import LETTERS, USUAL
from ..step.witness import NUMBER, starred

#: The longest sequence that is looked at where the model itself names none.
LONGEST = 2**17
#: In place of a depth: one layer of each kind.
SKETCH = "sketch"
#: What a configuration may call its longest sequence.
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")


@dataclass(frozen=True)
class Subject:
    """What is derived.

    Attributes:
        model: as `dry_run` takes it. layers: its depth, None where it cannot be changed. period: after how many layers
            their kinds come again. deep: makes the same model of another depth. longest: its longest sequence.
        batch: makes the arguments from {letter: size}; None where the dry run makes them itself.
        letters: of the arguments: B, S, then the reader's own. sizes: sequences at which the step may change, such as a
            window of attention. least: the smallest depth with layers of every kind. sketch: makes the model with one
            layer of each kind; None where `deep` makes one as shallow.
    """

    model: object
    layers: int | None = None
    period: int = 1
    deep: Callable | None = None
    longest: int = LONGEST
    batch: Callable | None = None
    letters: str = USUAL
    sizes: tuple[int, ...] = ()
    least: int = 2
    sketch: Callable | None = None

    @property
    def further(self) -> str:
        """The reader's own letters."""
        return "".join(letter for letter in self.letters if letter not in USUAL)

    def asked(self, setup: Setup, sizes: Mapping[str, int]) -> tuple:
        """(setup, batch) of a dry run at sizes of B, S and the further letters."""
        if self.batch is None:
            return setup.replace(batch=sizes["B"], sequence=sizes["S"]), None
        usual = Setup()  # the dry run reads both off the arguments
        return setup.replace(batch=usual.batch, sequence=usual.sequence), self.batch(sizes)

    def trace(self, setup: Setup, depth: int | str | None, sizes: Mapping[str, int], rank: int = 0) -> Trace:
        """The dry run at sizes of the letters, of so many layers or the `SKETCH`."""
        model = self.model
        if depth == SKETCH and self.sketch:
            model = self.sketch()
        elif self.deep and isinstance(depth, int) and depth != self.layers:
            model = self.deep(depth)
        setup, batch = self.asked(setup, sizes)
        return dry_run(model, setup, batch=batch, rank=rank)


def subject(model, batch=None) -> Subject:
    """What `derive` was given, made ready.

    Raises:
        ValueError: a batch without letters, or with what is no letter.
    """
    if isinstance(model, Model):
        config = None if model.family else _config(model)
        return Subject(
            model, model.layers, _period(config, model.layers, model.dense_layers) if config else 1,
            lambda n: model.replace(layers=n), model.positions or min(LONGEST, LIMITS["sequence"][1]),
            sizes=_windows(config), least=max(2, model.dense_layers + 1),
        )  # fmt: skip
    make, letters = _batches(batch)
    if not hasattr(model, "to_diff_dict"):  # no Hugging Face config
        if make is None and callable(model) and not isinstance(model, torch.nn.Module):
            raise ValueError(
                "derive.batch: None; allowed with a module of your own: the arguments of its forward with letters in their "
                'shapes, such as {"tokens": (("B", "S"), torch.int64)}, or a function of batch and sequence that makes them'
            )
        return Subject(model, batch=make, letters=letters)
    import_module("transformers.masking_utils")  # what the dry run tells it, it can be told only once it is there
    name = next((n for n in DEPTHS if isinstance(getattr(model, n, None), int)), None)
    longest = next((n for f in POSITIONS if isinstance(n := getattr(model, f, None), int) and n > 0), LONGEST)
    found = Subject(model, longest=longest, batch=make, letters=letters, sizes=_windows(model))
    if name is None:
        return found
    layers = getattr(model, name)

    def of(chosen):
        other = copy.deepcopy(model)
        setattr(other, name, len(chosen))
        for field, value in _by_layer(other, layers):
            setattr(other, field, [value[i] for i in chosen])
        return other

    period, kinds = _period(model, layers), _kinds(model, layers)
    sketch = (lambda: of(kinds)) if 1 < len(kinds) < period else None
    return replace(found, layers=layers, period=period, deep=lambda n: of(range(n)), sketch=sketch)


def _config(model):
    """The configuration of the model that Hugging Face's classes make, as the dry run does."""
    from ..dryrun.hugging_face import config_of

    config = config_of(model)
    import_module("transformers.masking_utils")
    return config


def _windows(config):
    """The sequences around each window or chunk size of a configuration, if there is one."""
    said = vars(config).items() if config else ()
    named = {v for f, v in said if ("window" in f or "chunk" in f) and "pattern" not in f and type(v) is int and v > 2}
    return tuple(sorted({v + d for v in named for d in (-16, -1, 0, 1, 16)}))


def _by_layer(config, layers):
    """(name, list) of each of a configuration's lists of one entry a layer."""
    return [(name, value) for name, value in vars(config).items() if isinstance(value, list) and len(value) == layers]


def _kinds(config, layers):
    """The first layer of each kind, by its number."""
    rows = list(zip(*(map(repr, value) for _, value in _by_layer(config, layers)), strict=True))
    return sorted({row: i for i, row in reversed(list(enumerate(rows)))}.values())


def _period(config, layers, first=0):
    """The period of the layers' kinds after the first ones, by the configuration's lists of one entry a layer."""
    kinds = [value[first:] for _, value in _by_layer(config, layers)]

    def again(value):
        return next(
            (p for p in range(1, layers) if all(a == b for a, b in zip(value, value[p:], strict=False))), layers
        )

    return max(map(again, kinds), default=1)


def _batches(batch):
    """(a function of {letter: size}, the letters used)."""
    if batch is None:
        return None, USUAL
    if callable(batch) and not isinstance(batch, torch.Tensor):
        return _named(batch)
    used = set()
    _put(batch, {}, used)
    if strange := sorted(letter for letter in used if letter not in LETTERS):
        raise ValueError(
            f"derive.batch: the letter {strange[0]!r}; allowed: B for the batch, S for the sequence, and another capital letter "
            "for each dimension of your own"
        )
    if not used:
        raise ValueError(
            "derive.batch: shapes without a letter; allowed: B and S where a size is the batch or the sequence, such as "
            '(("B", "S"), torch.int64), or a function of batch and sequence that makes the arguments'
        )
    return lambda sizes: _put(batch, sizes, set()), _ordered(used)


def _named(batch):
    """A function that makes the batch, of its letters; of two arguments by other names, of batch and sequence."""
    try:
        names = [p.name for p in inspect.signature(batch).parameters.values() if p.default is p.empty]
    except (TypeError, ValueError):  # a builtin, which tells nobody what it takes
        names = []
    if not names or not set(names) <= set(LETTERS):
        return lambda sizes: batch(sizes["B"], sizes["S"]), USUAL
    return lambda sizes: batch(**{name: sizes[name] for name in names}), _ordered(names)


def _ordered(letters):
    return "".join(sorted(letters, key=lambda letter: (letter not in USUAL, letter)))


def inputs(batch, size: int, sequence: int, **sizes: int):
    """A batch with letters, at one point; `sizes`: of further letters.

    Raises:
        ValueError: where a letter has no size, or a size is of a letter that is not there.
    """
    used = set()
    found = _put(batch, {"B": size, "S": sequence, **sizes}, used)
    for letter in sorted((used - {*USUAL}) ^ set(sizes)):
        said = "no size" if letter in used else "a size, but no shape has it"
        raise ValueError(f"batch: the letter {letter!r} has {said}; allowed: a size for each letter in the shapes")
    return found


def _put(value, sizes, used):
    """The batch with numbers for letters."""
    if isinstance(value, dict):
        return {k: _put(v, sizes, used) for k, v in value.items()}
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], torch.dtype):
        used |= {d for d in value[0] if isinstance(d, str)}
        return tuple(sizes.get(d, d) for d in value[0]), value[1]
    if isinstance(value, list | tuple):
        return type(value)(_put(v, sizes, used) for v in value)
    return value


class Look:
    """What a derivation reads from one dry run."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self.operations = [(name, phase) for name, phase, _ in trace.operations]
        self.owners = [_numbers(owner) for _, _, owner in trace.operations]
        last = len(self.operations) - 1
        self.births = [a.birth for a in trace.allocations]
        self.deaths = [last + 1 if a.death is None else a.death for a in trace.allocations]
        self.bytes = [a.bytes for a in trace.allocations]

    @cached_property
    def kinds(self) -> list[tuple]:
        """(part, owner with * for its numbers, whether on the host) of each allocation."""
        return [(a.part, _numbers(a.owner)[0], a.host) for a in self.trace.allocations]

    @cached_property
    def losses(self) -> list[bool]:
        """Whether each operation belongs to head or loss."""
        heads = self.trace.heads
        return [is_loss(owner) or owner in heads for _, _, owner in self.trace.operations]

    @cached_property
    def kind(self) -> int:
        """A hash of all but the bytes: one formula holds at two points only where it is equal."""
        allocations = zip(self.births, self.deaths, self.kinds, strict=True)
        return hash((*self.operations, *self.owners, *allocations, *self.trace.marks.items()))

    def differs(self, other: "Look") -> str:
        """Where two courses part, in words."""
        for i, pair in enumerate(zip(self.trace.operations, other.trace.operations, strict=False)):
            if pair[0] != pair[1]:
                (name, phase, owner), (instead, _, _) = pair
                return f"in {phase}, module {owner or 'the model'!r}: {name} at operation {i}, {instead} in its place"
        for a, b in zip(self.trace.allocations, other.trace.allocations, strict=False):
            if (a.birth, a.death, a.part) != (b.birth, b.death, b.part):
                return f"module {a.owner!r}: what {a.operation} made is freed at another place"
        return "in how many tensors it makes"


def _numbers(path):
    """(the path with * for each number, the numbers)."""
    return starred(path), tuple(map(int, NUMBER.findall(path)))
