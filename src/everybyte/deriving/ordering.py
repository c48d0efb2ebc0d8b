"""A derived step's requests in their order: dry runs say the order, the derivation's forms the bytes at every batch and sequence."""

from collections.abc import Sequence

from ..allocator import Request, Requests, Run, Shaped
from ..allocator.shaped import SHARED
from ..common import terminal
from ..derivation import Derivation
from ..dryrun.requests import requests

#: So many dry runs of a case are made first: of its smallest, its largest and a middle shape.
FIRST = 3
#: The first key of the beginning, of the first step, and of each step: so steps of two cases share none by chance.
_STARTS = (1, 2**20, 2**30)


class Ordered:
    """The requests of a derivation's step at any batch and sequence.

    Within one of its cases every step makes the same requests; of each, the dry runs of some shapes say which of the derivation's forms
    its bytes are. Where they leave a choice that matters at a shape, that shape is run too.

    Args:
        workspace, whole: as for a dry run's requests. shapes: (batch, sequence) of those that will be asked for.

    Attributes:
        runs: how many dry runs were made.
    """

    def __init__(self, derivation: Derivation, workspace: int, whole: bool, shapes: Sequence[tuple[int, int]]):
        self.derivation, self.workspace, self.whole, self.runs = derivation, workspace, whole, 0
        self._cases: dict[int, _Case] = {}
        self._shapes = sorted(set(shapes), key=lambda shape: (shape[0] * shape[1], shape))

    def at(self, batch: int, sequence: int) -> Shaped:
        """The requests of one shape. Raise ValueError where the derivation does not hold there."""
        case = self._case(batch, sequence)
        sizes = case.counted.get((batch, sequence)) or case.sizes(self.derivation.sizes(batch, sequence))
        if sizes is None:
            self._count(case, batch, sequence)
            sizes = case.counted[batch, sequence]
        return case.shaped(sizes)

    def _case(self, batch, sequence):
        found = self.derivation.case({"B": batch, "S": sequence})
        if id(found) not in self._cases:
            case = self._cases[id(found)] = _Case()
            inside = [shape for shape in self._shapes if shape in found] or [(batch, sequence)]
            some = dict.fromkeys(inside[place * (len(inside) - 1) // (FIRST - 1)] for place in range(FIRST))
            for shape in terminal.bar(iterable=some, desc="dry runs"):
                self._count(case, *shape)
        return self._cases[id(found)]

    def _count(self, case, batch, sequence):
        """A dry run of one shape."""
        self.runs += 1
        trace = self.derivation.again(self.derivation.setup.replace(batch=batch, sequence=sequence))
        asked = _numbered(requests(trace, self.workspace, self.whole))
        case.add((batch, sequence), asked, self.derivation.sizes(batch, sequence))


class _Case:
    """Steps that make the same requests.

    Attributes:
        counted: shape -> bytes of each request, in their order, 0 where it frees.
    """

    def __init__(self):
        self.counted, self._order, self._forms = {}, None, []

    def add(self, shape, parts: Requests, forms):
        """A dry run's requests, and the bytes of each of the derivation's forms there."""
        order = [[(r.key, bool(r.bytes), r.stream) for r in part] for part in _parts(parts)]
        if self._order is None:
            self._order = order
        elif order != self._order:
            raise ValueError(
                f"epoch: the step of batch {shape[0]:,}, sequence {shape[1]:,} makes other requests than one of the same case of its "
                "derivation; allowed: a model whose steps do not depend on more than its derivation's cases"
            )
        self.counted[shape] = [r.bytes for part in _parts(parts) for r in part]
        self._forms.append(forms)
        each = list(zip(*self.counted.values(), strict=True))
        self._kinds = list(dict.fromkeys(each))
        number = {kind: i for i, kind in enumerate(self._kinds)}
        self._kind = [number[one] for one in each]
        columns = list(zip(*self._forms, strict=True))
        known: dict = {}
        for form, column in enumerate(columns):
            known.setdefault(column, []).append(form)
        self._said = [known.get(kind) for kind in self._kinds]

    def sizes(self, forms):
        """Bytes of each request at another shape; None where the dry runs do not say which form one has."""
        found = []
        for kind, said in zip(self._kinds, self._said, strict=True):
            values = {forms[form] for form in said} if said else set(kind)
            if len(values) != 1:
                return None
            found.append(values.pop())
        return [found[kind] for kind in self._kind]

    def shaped(self, sizes):
        """The requests with these bytes."""
        rest = iter(sizes)
        beginning, first, steady = ([Request(key, next(rest), s) for key, _, s in part] for part in self._order)
        return Shaped(beginning, [Run(0, first)], [Run(0, steady)])


def _parts(asked):
    return asked.beginning, asked.first, asked.steady


def _numbered(asked):
    """The requests with numbers for keys, in order: those of the beginning, of the first step, of each, and from `SHARED` on of what a
    step finds of the one before it."""
    alive = {}
    for r in (*asked.beginning, *asked.first):
        alive[r.key] = alive.get(r.key, 0) + (1 if r.bytes else -1)
    standing = dict.fromkeys(r.key for r in asked.steady if not r.bytes and alive.get(r.key, 0) > 0)
    numbers = {key: SHARED + number for number, key in enumerate(standing)}
    parts = []
    for part, start in zip(_parts(asked), _STARTS, strict=True):
        for number, key in enumerate(dict.fromkeys(r.key for r in part)):
            numbers.setdefault(key, start + number)
        parts.append([r._replace(key=numbers[r.key]) for r in part])
    return Requests(*parts)
