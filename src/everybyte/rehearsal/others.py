"""What PyTorch and other libraries read off data, which a rehearsal has not: they are told it, and the report says so."""

import warnings
from collections.abc import Callable
from math import ceil


def one_sequence_a_row(masks) -> str:
    """Tell Hugging Face's models that no row packs several sequences: they would read that off positions, which are zeros here."""
    masks.find_packed_sequence_indices = lambda position_ids: None
    return "rows of tokens are taken for one sequence each: what tells packed ones apart would be read as 0"


def by_length(generation) -> str:
    """Have Hugging Face's `generate` end by its length: it waits for the GPU to say that every sequence has ended."""
    criteria, mixin = generation.StoppingCriteriaList, generation.GenerationMixin
    judge, unfinished, reached = criteria.__call__, mixin._has_unfinished_sequences, []

    def __call__(self, input_ids, *args, **kwargs):
        reached[:] = [self.max_length is not None and input_ids.shape[1] >= self.max_length]
        return judge(self, input_ids, *args, **kwargs)

    def _has_unfinished_sequences(self, *args, **kwargs):
        unfinished(self, *args, **kwargs)  # it exchanges a number between ranks
        return not (reached and reached.pop())

    criteria.__call__, mixin._has_unfinished_sequences = __call__, _has_unfinished_sequences
    return "sequences are generated to their greatest length: that one has ended before would be read as 0"


#: Module -> what is called with it after its import, and says what it did.
TOLD = {"transformers.masking_utils": one_sequence_a_row, "transformers.generation.utils": by_length}


def without_cudnn(torch) -> None:
    """Keep cuDNN off, whatever the script says: it has no plans here. Where its attention is asked for, flash attention stands in."""
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.enabled = False
    C, asked = torch._C, {"cudnn": False, "flash": torch._C._get_flash_sdp_enabled()}
    flash = C._set_sdp_use_flash

    def setter(name):
        def use(on):
            asked[name] = bool(on)
            flash(any(asked.values()))

        return use

    C._set_sdp_use_cudnn, C._set_sdp_use_flash = setter("cudnn"), setter("flash")
    C._get_cudnn_sdp_enabled, C._get_flash_sdp_enabled = (lambda: asked["cudnn"]), (lambda: asked["flash"])
    C._set_cudnn_enabled = lambda on: None
    type(torch.backends.cudnn).enabled = property(lambda self: False, lambda self, on: None)


def normal_without_a_look(torch) -> None:
    """Have `torch.normal` not ask the GPU whether every deviation is positive. Its other steps, and what they take, are the same."""
    original = torch.normal

    def normal(mean=0.0, std=1.0, size=None, *, out=None, **more):
        if size is not None or out is not None or not (torch.is_tensor(std) and std.is_cuda):
            return original(
                mean, std, *(() if size is None else (size,)), **({} if out is None else {"out": out}), **more
            )
        shape = torch.broadcast_shapes(std.shape, mean.shape) if torch.is_tensor(mean) else std.shape
        return torch.empty(shape, dtype=std.dtype, device=std.device).normal_(**more).mul_(std).add_(mean)

    torch.normal = normal


def rows(torch, share: float, seen: Callable[[], None]) -> object:
    """Let `x[mask]`, `nonzero`, `masked_select` and `where(mask)` find a share of the rows that they look at; and masks that are brought
    to the CPU say the same, evenly spread.

    Args:
        seen: called each time.

    Returns:
        What keeps it so, as long as it lives.
    """

    def nonzero(self):
        seen()
        found = ceil(share * self.numel())
        return torch.empty((self.dim(), found), dtype=torch.int64, device=self.device).t()

    def brought(original):
        def bring(self, *args, **kwargs):
            found = original(self, *args, **kwargs)
            if self.dtype == torch.bool and self.is_cuda and not found.is_cuda and self.numel() > 1:
                seen()
                every = torch.arange(self.numel() + 1).mul(share).ceil().diff() > 0
                found.copy_(every.view(found.shape))
            return found

        return bring

    torch.Tensor.cpu = brought(torch.Tensor.cpu)
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it stands in place of PyTorch's own
        library.impl("nonzero", nonzero, "CUDA", allow_override=True)
    return library
