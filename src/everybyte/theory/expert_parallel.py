"""Experts divided among GPUs: `experts`, with rows that travel to the GPU of the expert that they visit, and back.

Source: `reference/mesh/experts.py`, line by line. How many rows come, the mesh says. What is sent lives until what comes is
waited for: NCCL's process group keeps it.
"""

import math
from dataclasses import replace

from . import operations as op
from .architectures import Network
from .autograd import record
from .experts import grouped, indexed, route, summed, unsqueezed
from .letters import Letter, over, product
from .sharding import Cut
from .tape import INT32, INT64
from .tensors import new, several
from .training import Step

#: The weights that are divided.
OWN = ("mlp.gate_up", "mlp.down")


def received(model, setup) -> int:
    """Rows that come to one GPU's experts."""
    return math.ceil(setup.mesh.routing * setup.batch * setup.own_sequence * model.experts_per_token)


def along(model, setup) -> int:
    """The dimension along which FSDP cuts the experts of one GPU: the experts, or where there are fewer than GPUs, their rows."""
    return int(setup.expert_shards * setup.mesh.expert > model.experts)


class ExpertNetwork(Network):
    """A network of which one GPU has some experts. `parts`, `rows`: among how many they are divided, how many rows come."""

    parts: Letter
    rows: Letter

    def _add(self, name, shape, *rest):
        super()._add(name, (over(shape[0], self.parts), *shape[1:]) if name.endswith(OWN) else shape, *rest)

    def _mlp(self, path, x):
        whole = self.split.enter(x, "MLP input")
        return self.call(path, lambda x: self.split.leave(self._mixture(path, x), "experts"), whole)

    def _mixture(self, path, x):
        tokens = op.reshape(x, (x.shape[0] * x.shape[1], x.shape[2]), "experts' tokens")
        _logits, weights, chosen = route(self, path, tokens)
        return op.reshape(self._visit(path, tokens, weights, chosen), x.shape, "experts")

    def _visit(self, path, tokens, weights, chosen):
        tape, model = self.tape, self.model
        visits, own = (product(weights.shape),), over(model.experts, self.parts)
        weights, chosen = op.reshape(weights, visits, "visits' weights"), op.reshape(chosen, visits, "visits")
        expert, order = several(tape, "visits sorted", (visits, INT64), (visits, INT64))
        rows = indexed(tokens, new(tape, "visits' tokens", visits, INT64), "visits' rows")
        weights = indexed(weights, order, "visits' weights sorted")
        counted = new(tape, "visits in int32", visits, INT32)  # noqa: F841
        visitors = new(tape, "visitors", (model.experts,), INT32)  # noqa: F841
        coming = new(tape, "visitors from all", (model.experts,), INT32)  # noqa: F841

        sent, expert = expert, new(tape, "visits from all", (self.rows,), INT64)
        given, rows = rows, _exchanged(rows, self.rows, "rows from all")
        del sent
        _, by_expert = several(tape, "visits from all sorted", ((self.rows,), INT64), ((self.rows,), INT64))
        total = new(tape, "visitors added", (own,), INT64)
        ends = new(tape, "experts' ends", (own,), INT32)
        del total, given
        outer = self.call(
            f"{path}.own", lambda rows, ends: self._own(path, rows, ends), self._by_expert(rows, by_expert), ends
        )
        outer = indexed(outer, _inverse(tape, (self.rows,)), "rows as they came")
        given, outer = outer, _exchanged(outer, visits[0], "rows back")
        del given

        outer = op.multiply(outer, unsqueezed(weights), "visits weighted")
        outer = op.reshape(
            indexed(outer, _inverse(tape, visits), "visits back in order"),
            (tokens.shape[0], model.experts_per_token, tokens.shape[1]),
            "visits",
        )
        return op.cast(summed(outer, 1, "visits added"), tokens.type, "experts cast")

    def _by_expert(self, rows, order):
        return indexed(rows, order, "rows by expert")

    def _own(self, path, rows, ends):
        """The experts of one GPU: rows that lie by expert in, rows out."""
        gate_up = grouped(rows, self.parameters[f"{path}.gate_up"], ends, "experts' gate and up")
        gate, up = op.split(gate_up, (self.model.expert_width,) * 2, -1, "experts' gate and up gradient")
        inner = op.multiply(op.activation(gate, self.model.activation), up, "experts' product")
        return grouped(inner, self.parameters[f"{path}.down"], ends, "experts' down")


def _exchanged(x, rows, title):
    """Source: `all_to_all_single_autograd`."""
    before = x.shape
    out = new(x.tape, title, (rows, *before[1:]), x.type)
    record(out, title, lambda node, grads: [new(grads[0].tape, f"{title} backward", before, grads[0].type)], [x])
    return out


def _inverse(tape, shape):
    back = new(tape, "places", shape, INT64)
    counting = new(tape, "counted", shape, INT64)
    del counting
    return back


class ExpertStep(Step):
    """The step of one GPU of those that divide experts; of those that share sequences too, a `RingStep` is before it."""

    def __init__(self, model, setup, *others):
        self.groups, self.rows = Letter(setup.mesh.expert, "E_p"), Letter(received(model, setup), "X")
        if setup.fsdp:
            self.own = Cut(OWN, Letter(setup.expert_shards, "G_e"), along(model, setup))
        super().__init__(model, setup, *others)

    def kind(self, network):
        beside = () if network is Network else (network,)
        return type("Divided", (*beside, ExpertNetwork), {"parts": self.groups, "rows": self.rows})

    def _counted(self, weights):
        mine = (
            replace(w, shape=(over(w.shape[0], self.groups), *w.shape[1:])) if w.name in OWN else w for w in weights
        )
        return super()._counted(mine)
