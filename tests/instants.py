"""Every instant of a GPT's step as a formula: what the peak is held to."""

from dataclasses import dataclass
from functools import cache

from sympy import Add

from everybyte.formulas.readings import both, expression, letter, merged, reading
from everybyte.formulas.states import BUFFERS, FRESH, GRADIENT_BUFFER, OPTIMIZER, WEIGHTS
from everybyte.formulas.symbols import B, S, scaled, w
from everybyte.formulas.temporaries import GRADIENTS, ROOTS, one_root
from everybyte.step.course import place_of


@dataclass(frozen=True)
class Instant:
    """Live bytes while one operation runs; `parts` is part -> expression. Of the blocks, the first and the last."""

    moment: str
    name: str
    parts: dict[str, object]

    @property
    def total(self):
        """Live bytes in all."""
        return Add(*self.parts.values())


#: What matters to the instants of a step, one by one; biases and a tied head add to what lives, whatever else is switched on.
_BIASES = ("qkv_bias", "out_bias", "ffn_bias", "norm_bias")


@cache
def instants(names=None) -> tuple[Instant, ...]:
    """Every instant of a GPT's step, in order, in exact tensor bytes: the peak is the largest of their totals.

    With the plain loss, no checkpointing, one batch, more than one block, and heads and tokens that are more than one.

    Args:
        names: only those with these (moment, name).
    """
    order, levels = _levels()
    rest = {"parameters": WEIGHTS, "buffers": BUFFERS, "optimizer": OPTIMIZER, "gradients": GRADIENT_BUFFER}
    found, known = [], {}
    for place, (moment, name, *_) in enumerate(order):
        if names is not None and (moment, name) not in names:
            continue
        parts = {part: f.expr for part, f in rest.items()}
        for part in ("casts", "gradients", "activations", "transient", "loss"):
            level = {key: course[place].get(part, 0) for key, course in levels.items()}
            if (said := tuple(level.values())) not in known:
                known[said] = expression(_over_structures(lambda **on: level[_key(on)]))  # noqa: B023
            parts[part] = parts.get(part, 0) + known[said]
        found.append(Instant(moment, name, parts))
    return tuple(found) + tuple(i for i in _in_the_optimizer() if names is None or (i.moment, i.name) in names)


def _key(on):
    return tuple(sorted(on.items()))


def _over_structures(read):
    """Of what lives at an instant, by all switches that matter to it."""
    found, plain = merged(read, both("dropped", then=("eager", both("narrow"), both("several"))), moved=True), None
    for name in (*_BIASES, "tied"):
        plain = merged(read, moved=True) if plain is None else plain
        found += (letter(name) - 1) * (plain - merged(lambda **on: read(**on, **{name: 0}), moved=True))  # noqa: B023
    return found


def _levels():
    """(the order of instants, structure -> part -> bytes more than between steps at each of them)."""
    order, changes = [], {}

    def see(**on):
        changes[_key(on)] = _changes(reading(**on))
        return 0

    _over_structures(see)
    for found in sorted(changes.values(), key=len, reverse=True):
        _insert(order, found)
    return order, {key: _filled(found, order) for key, found in changes.items()}


def _changes(read):
    """(where, name, turn, which of equal ones) -> part -> bytes more than between steps: while it runs, and after it."""
    found, seen = {}, {}
    for moment in read.moments:
        operation, turn = moment.operation, dict(moment.operation.place).get("block")
        if operation.phase not in ("forward", "backward") or (operation.phase == "forward" and turn == 0):
            continue
        if not operation.taken:
            continue
        key = place_of(operation), operation.name, turn
        seen[key] = seen.get(key, 0) + 1
        more = [{part: live[part] - read.rest[part] for part in live} for live in (moment.live, moment.after)]
        found[*key, seen[key]] = more
    return found


def _insert(order, keys):
    """Put into an order what it lacks, each after what stands before it."""
    place = 0
    for key in keys:
        if key in order:
            place = max(place, order.index(key) + 1)
        else:
            order.insert(place, key)
            place += 1


def _filled(changes, order):
    """What lives at each place of the order; where a step has no such operation, what lives once those before it have run."""
    found, passed, states, course = [], -1, list(changes.values()), {key: i for i, key in enumerate(changes)}
    for key in order:
        passed = max(passed, course.get(key, -1))
        found.append(changes[key][0] if key in changes else states[passed][1] if passed >= 0 else {})
    return found


def _in_the_optimizer():
    parts = {"parameters": WEIGHTS.expr, "buffers": BUFFERS.expr, "gradients": GRADIENT_BUFFER.expr + FRESH.expr}
    tokens = {"activations": 8 * B * S, "loss": 8 * B * S + w}
    for name, taken in (
        ("gradients unscaled", 16 * scaled),
        ("fp32 gradients", 4 * scaled + GRADIENTS),
        ("root of the variance", 4 * scaled + GRADIENTS + ROOTS),
        ("root of one tensor's variance", 4 * scaled + GRADIENTS + one_root()),
    ):
        yield Instant("optimizer step", name, parts | tokens | {"optimizer": OPTIMIZER.expr + taken})
