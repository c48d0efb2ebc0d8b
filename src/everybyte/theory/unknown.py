"""Names of PyTorch's that the tape lacks, by which a source may still say which operations it means."""

from types import SimpleNamespace

from .tensors import Tensor


class Unknown:
    """A name of PyTorch's that the tape lacks. A file may mention it; calling it with a tensor is refused."""

    def __init__(self, name):
        self._name = name

    def __eq__(self, other):
        return isinstance(other, Unknown) and other._name == self._name

    __hash__ = object.__hash__

    def __call__(self, *args, **options):
        if any(isinstance(x, Tensor) for x in (*args, *options.values())):
            raise NotImplementedError(
                f"{self._name}: the tape has no such operation; add it to everybyte.theory.stand_in, or use one that is there"
            )
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Unknown(f"{self._name}.{name}")


def saving(policy):
    """What `autograd.checkpoint` asks, of a list or of a policy."""

    def saves(again, kind):
        op = Unknown(f"torch.ops.{kind}.default")
        if isinstance(policy, list):
            return op in policy
        return policy(SimpleNamespace(is_recompute=again), op) == Unknown(
            "torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE"
        )

    return saves
