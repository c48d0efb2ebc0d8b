"""What autograd saves, in the memory of the CPU: `torch.autograd.graph.save_on_cpu(pin_memory=True)` on the tape."""

from .tape import Held, Tape
from .tensors import Tensor, is_contiguous, new


class OnHost:
    """Saved tensors go to the host as they are saved; each comes back as a tensor of its own, in the order of its dimensions.

    A tensor that is not contiguous is first copied on the GPU. Sources: PyTorch, `torch/autograd/graph.py`, `save_on_cpu`;
    `aten/src/ATen/native/cuda/Copy.cu`, `copy_requires_temporaries`.
    """

    def __init__(self, tape: Tape):
        self.tape = tape

    def pack(self, x: Tensor):
        """In forward: its shape and type, in place of the tensor."""
        if not is_contiguous(x):
            new(self.tape, "saved tensor in order", x.shape, x.type)  # for the copy alone
        return Held(self, (x.shape, x.type))

    def unpack(self, saved) -> Tensor:
        """In backward."""
        return new(self.tape, "saved tensor from the host", *saved)
