"""A step in letters for every dimension, by PyTorch's symbolic shapes: the dry run, on tensors whose sizes are sympy's.

The step runs once as it is, on tensors without data whose sizes are letters. What an operation asks of a size, PyTorch
writes down as a guard: those are the conditions. Layers are no letter, as they are no size: the step is run at three
depths, and goes on in a straight line.

What stands in its way, and what is done instead, none of which moves a byte: `nn.LayerNorm` takes no letter for a width,
but a tuple of one; weights are not initialized, and are made in their data type, since `Module.to` swaps parameters, which
tensors with letters refuse; the root of a head's width by which scores are divided would fix the width, and is 1; whether
there are fewer key than query heads is told, as scaled_dot_product_attention takes a flag for it, and no condition.
"""

import math
import operator
from contextlib import ExitStack
from functools import cache, partial
from math import prod
from types import SimpleNamespace
from typing import Any
from unittest import mock

import sympy
import torch
from torch import nn
from torch.nn import functional as F

from ..ask.setup import Setup
from ..catalog import Model
from ..derivation.course import instants
from ..derivation.lettered import Lettered, LetteredInstant, check_width, symbol
from ..dryrun import Trace, Workload, count
from ..dryrun.interrupts import BetweenOperations
from ..dryrun.tracker import Tracker, sole_holder
from ..dryrun.workload import as_tuple
from ..reference import gpt, llama
from ..reference.saving import built
from ..reference.step import DTYPES, random_batch
from ..rules import LETTERS, check
from ..step.course import MARKS, PHASES
from .depth import Depth, further
from .looks import Look

#: Numbers that stand for the letters while the step runs: none is another's multiple, nor a product of others.
_STAND_INS = {"B": 7, "S": 96, "A": 6, "A_{kv}": 3, "D": 11, "F": 1553, "V": 50_021, "N": 1_024}
_DEPTHS = (1, 2, 3)
#: A head's width is eight of these: what kernels ask for.
_EIGHTH = sympy.Symbol("d", integer=True, positive=True)


def in_letters(model: Model, setup: Setup) -> Lettered:
    """The step of a model's architecture in letters.

    Raises:
        ValueError: what the references do not build; several GPUs, or a loss in chunks; a step that fixes a letter.
    """
    known = isinstance(model, Model) and model.family
    if not known or model.experts or model.scaled_embedding or model.norm_offset:
        name = model.name if isinstance(model, Model) else type(model).__name__
        raise ValueError(
            f"derive.letters: 'all' with {name}; allowed: a GPT or a Llama of the catalog without experts; of any other, 'BS'"
        )
    check(LETTERS, setup)
    check_width(model)
    setup.check_model(model)
    traces, guards = zip(*(_traced(model, setup, depth) for depth in _DEPTHS), strict=True)
    return _solved(model, setup, traces, set().union(*guards))


# The step, on sizes that are letters.


class _InLetters(Tracker):
    """A tracker whose allocations have sympy expressions for bytes."""

    asked: tuple[type, ...] = ()
    unseen: tuple[type, ...] = ()
    products: dict = {}  # noqa: RUF012  nobody asks for them

    def __init__(self, letters):
        super().__init__()
        self._sole, self._letters = sole_holder.__wrapped__(), letters

    def size(self, number):
        return self._letters.expression(number)

    @staticmethod
    def answer(func, args, kwargs):
        if func is torch.ops.aten._foreach_sqrt.default:  # PyTorch's own for 16 bits asks for strides as numbers
            return [torch.empty_like(t) for t in args[0]]
        return func(*args, **kwargs)


class _Letters:
    """The letters as sizes that PyTorch takes, and its answers back as expressions."""

    def __init__(self, names):
        from torch._dynamo.source import ConstantSource
        from torch._subclasses import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

        self.shapes = ShapeEnv(specialize_zero_one=True, duck_shape=False)
        self.mode = FakeTensorMode(shape_env=self.shapes, allow_non_fake_inputs=True)
        self.mode.cache_enabled = False  # to look an answer up takes longer than to find it again
        self.sizes, self._names, self._known = {}, {}, {}
        for name in names:
            source = ConstantSource(name)
            made = self.shapes.create_symbol(_STAND_INS[name], source, dynamic_dim=DimDynamic.DYNAMIC)
            self._names[made] = self._stands_for(name, names)
            self.sizes[name] = self.shapes.create_symintnode(made, hint=_STAND_INS[name], source=source)
        self.sizes["D"] = 8 * self.sizes["D"]
        self.sizes["A"] = self.sizes["A"] * self.sizes.get("A_{kv}", 1)

    @staticmethod
    def _stands_for(name, names):
        """What a letter counts: heads are counted in eighths of their width, and by those that share a key head."""
        if name == "A" and "A_{kv}" in names:
            return symbol("A") / symbol("A_{kv}")
        return _EIGHTH if name == "D" else symbol(name)

    def expression(self, number):
        """A size as an expression in the book's letters."""
        if not isinstance(number, torch.SymInt):
            return sympy.Integer(int(number))
        found = number.node.expr
        if found not in self._known:
            self._known[found] = sympy.expand(self.plain(found)).subs(_EIGHTH, symbol("D") / 8)
        return self._known[found]

    def plain(self, found):
        """An expression of PyTorch's in sympy's own functions."""
        found = found.xreplace(self._names)
        for theirs, plain in _plain().items():
            found = found.replace(theirs, plain)
        return found

    @property
    def guards(self):
        """The conditions on sizes that the step asked for and that do not hold by themselves."""
        found = set()
        for guard in self.shapes.guards:
            said = sympy.simplify(self.plain(guard.expr))
            if said != sympy.true:
                found.add(said)
        return found


@cache
def _plain():
    """Function of PyTorch's -> what says the same in sympy's own."""
    from torch.utils._sympy import functions as own

    def down(a, b):
        return sympy.floor(a / b)

    return {
        own.FloorDiv: down, own.CleanDiv: down, own.IntTrueDiv: operator.truediv, own.FloatTrueDiv: operator.truediv,
        own.CeilToInt: sympy.ceiling, own.Mod: sympy.Mod, own.PythonMod: sympy.Mod,
        own.Max: sympy.Max, own.Min: sympy.Min,
    }  # fmt: skip


def _traced(model, setup, depth) -> tuple[Trace, set]:
    """(the trace at a depth, with expressions for bytes; its guards)."""
    names = ["B", "S", "A", "D", "F", "V"]
    names += (["N"] if model.learned_positions else []) + (["A_{kv}"] if model.kv_heads < model.heads else [])
    letters = _Letters(names)
    size = letters.sizes
    shape = _Lettered(
        model, layers=depth, width=size["A"] * size["D"], heads=size["A"], kv_heads=size.get("A_{kv}", size["A"]),
        head_width=size["D"], ffn_width=size["F"], vocabulary=size["V"], positions=size.get("N", model.positions),
        learned_positions=size.get("N", 0),
    )  # fmt: skip
    unchecked: Any = _Lettered(setup, batch=size["B"], sequence=size["S"])
    tokens = random_batch(size["V"], unchecked, "meta")
    with BetweenOperations(), ExitStack() as stack:
        stack.enter_context(letters.mode)
        for patch in _patches():
            stack.enter_context(patch)
        work = Workload(
            lambda: _made(model, shape, unchecked), tokens, lambda batch: [batch[1]],
            as_tuple, setup, model,
        )  # fmt: skip
        return count(work, _InLetters(letters)), letters.guards


class _Lettered:
    """A model or a setup with letters for some sizes; it was checked with numbers before."""

    def __init__(self, whole, **letters):
        vars(self).update(letters, _whole=whole)

    def __getattr__(self, name):
        return getattr(self._whole, name)

    def check_model(self, *_):
        return None

    unlike_reference = check_model


def _made(model, shape, setup):
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(DTYPES[setup.dtypes.weights])
        module = built(shape, setup)
    module.to = lambda *_: module
    grouped = model.kv_heads < model.heads  # a bool, where letters compare to one that no kernel takes
    for child in module.modules():
        if isinstance(child, llama.GroupedAttention):
            child.flash_attention = partial(F.scaled_dot_product_attention, is_causal=True, enable_gqa=grouped)
    return module


def _patches():
    """What lets a module be made of letters."""
    for kind in (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm):
        yield mock.patch.object(kind, "reset_parameters", lambda self: None)
    for kind in (nn.LayerNorm, nn.RMSNorm):
        yield mock.patch.object(kind, "__init__", _of_tuple(kind.__init__))
    for module in (gpt, llama):
        yield mock.patch.object(module, "math", SimpleNamespace(**vars(math) | {"sqrt": lambda _: 1.0}))


def _of_tuple(init):
    def with_tuple(self, width, *args, **kwargs):
        init(self, (width,) if isinstance(width, torch.SymInt) else width, *args, **kwargs)

    return with_tuple


# From three depths to any, and to the instants that can be the peak.


def _solved(model, setup, traces, guards):
    columns, depths, parts = {}, [], tuple(traces[0].timeline())
    for look in map(Look, traces):
        keys = [(*kind, size) for kind, size in zip(look.kinds, look.bytes, strict=True)]
        depths.append(Depth(look, [columns.setdefault(key, len(columns)) for key in keys]))
    keys, deeper = list(columns), symbol("L") - _DEPTHS[0] - 3
    courses = [instants(further(depths, times, parts)) for times in (3, 4, 5)]
    found = []
    for one, two, three in zip(*courses, strict=True):
        more = two.counts - one.counts
        if uneven := three.counts - two.counts - more:
            part, *_ = keys[next(iter(uneven))]
            raise ValueError(f"derive.letters: the tensors of {part} are on no straight line in the layers")
        live = dict.fromkeys(parts, sympy.Integer(0))
        for column in one.counts.keys() | two.counts.keys():
            part, _, host, size = keys[column]
            if not host:
                live[part] += (one.counts.get(column, 0) + more.get(column, 0) * deeper) * size
        live = {part: sympy.expand(said) for part, said in live.items()}
        total = sympy.expand(sympy.Add(*live.values()))
        found.append(LetteredInstant(one.operation, one.phase, one.owner, one.at, live, total))
    marks = {"rest": 0} | {o.operation: i for i, o in enumerate(found) if o.operation in MARKS}
    conditions = _conditions(guards)
    step = range(marks["after_backward"], marks["after_step"] + 1)
    how = (
        "By PyTorch's symbolic shapes: the step was run on tensors whose sizes are letters, of "
        f"{', '.join(map(str, _DEPTHS))} layers, and goes on in a straight line; the conditions are what the operations asked."
    )
    return Lettered(
        model, setup, tuple(found), tuple(_highest(found, range(len(found)))), tuple(_highest(found, step)),
        {name: marks[name] for name in PHASES if name in marks}, conditions, how,
    )  # fmt: skip


def _conditions(guards):
    """(in words, as a condition) each; ValueError where one fixes a letter."""
    D, B, S = (symbol(name) for name in "DBS")
    found = [
        ("2 sequences or more", B >= 2), ("2 tokens or more", S >= 2), ("2 heads or more", symbol("A") >= 2),
        (f"{_DEPTHS[1]} layers or more", symbol("L") >= _DEPTHS[1]), ("heads of a multiple of 8", sympy.Eq(sympy.Mod(D, 8), 0)),
    ]  # fmt: skip
    for guard in sorted(guards, key=str):
        said = guard.subs(_EIGHTH, D / 8)
        if isinstance(said, sympy.Eq) and len(said.free_symbols) == 1 and any(side.is_Integer for side in said.args):
            raise ValueError(f"derive.letters: the step fixes {said}; allowed: letters 'BS'")
        found.append((f"{sympy.sstr(said)}", said))
    return tuple(found)


def _highest(instants, among):
    """The numbers of those instants that can be the highest: the others are below one of them, whatever the letters.

    With 1 + x for each letter, one instant's bytes less another's have no negative coefficient; a quotient that is rounded
    up lies between the quotient and the quotient and one. Where key heads are fewer, A stands for the heads that share one.
    """
    grouped = any(symbol("A_{kv}") in instants[i].total.free_symbols for i in among)
    shared = {symbol("A"): symbol("A") * symbol("A_{kv}")} if grouped else {}
    first = {}
    for i in among:
        first.setdefault(sympy.expand(instants[i].total.xreplace(shared)), i)
    letters = sorted(set().union(*(e.free_symbols for e in first)), key=str)
    rounded = sorted(set().union(*(e.atoms(sympy.ceiling, sympy.floor) for e in first)), key=str)
    stand = {x: sympy.Symbol(f"q{n}") for n, x in enumerate(rounded)}
    ring, *generators = sympy.polys.rings.ring([*letters, *stand.values()], sympy.QQ)
    variables = [g + 1 if n < len(letters) else g for n, g in enumerate(generators)]

    @cache
    def monomial(powers):
        return prod((x**power for x, power in zip(variables, powers, strict=True)), start=ring.one)

    def moved(expression):
        """With 1 + x for each letter."""
        terms = ring.from_expr(expression.xreplace(stand)).terms()
        return sum((monomial(powers) * factor for powers, factor in terms), ring.zero)

    bounds = []  # the least and the most that each rounded quotient is
    for x in rounded:
        inside, slack = moved(sympy.expand(x.args[0])), 1 if isinstance(x, sympy.ceiling) else -1
        bounds.append((inside + min(slack, 0), inside + max(slack, 0)))
    totals = {i: moved(e) for e, i in first.items()}

    def above(i, k):
        difference = totals[i] - totals[k]
        for place, (least, most) in enumerate(bounds, len(letters)):
            found = ring.zero
            for powers, factor in difference.terms():
                without = ring.from_dict({powers[:place] + (0,) + powers[place + 1 :]: factor})
                found += without * (least if factor > 0 else most) ** powers[place]
            difference = found
        return all(factor >= 0 for _, factor in difference.terms())

    numbers = {x: 997 + 13 * n for n, x in enumerate(letters)}
    kept = []
    for i in sorted(totals, key=lambda i: -instants[i].total.subs(numbers)):
        if not any(above(k, i) for k in kept):
            kept = [k for k in kept if not above(i, k)] + [i]
    return sorted(kept)
