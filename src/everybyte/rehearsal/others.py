"""What PyTorch and other libraries read off data, which a rehearsal has not: they are told it, and the report says so."""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any


def instead(*holders: Any, name: str = "") -> Callable[[Callable], Callable]:
    """Decorate a function to stand in the place of a module's or class's, by default the one of its name, which it gets first.

    Args:
        holders: where it stands; others than the first one may not have it.
    """

    def put(function):
        at = name or function.__name__
        original = getattr(holders[0], at)

        @functools.wraps(original)
        def called(*args, **kwargs):
            return function(original, *args, **kwargs)

        for holder in holders:
            if hasattr(holder, at):
                setattr(holder, at, called)
        return called

    return put


def one_sequence_a_row(masks, note: Callable[[str], None]) -> None:
    """Tell Hugging Face's models that no row packs several sequences, where they would read that off positions that are zeros here."""

    @instead(masks)
    def find_packed_sequence_indices(find, position_ids):
        from torch.compiler import is_compiling

        return None if is_compiling() or not known(position_ids) else find(position_ids)

    note("rows of tokens are taken for one sequence each, unless the script brings their positions: what tells packed ones apart would be read as 0")  # fmt: skip


def by_length(generation, note: Callable[[str], None]) -> None:
    """Have Hugging Face's `generate` end by its length: it waits for the GPU to say that every sequence has ended."""
    reached = []

    @instead(generation.StoppingCriteriaList)
    def __call__(judge, self, input_ids, *args, **kwargs):
        reached[:] = [self.max_length is not None and input_ids.shape[1] >= self.max_length]
        return judge(self, input_ids, *args, **kwargs)

    @instead(generation.GenerationMixin)
    def _has_unfinished_sequences(unfinished, self, *args, **kwargs):
        unfinished(self, *args, **kwargs)  # it exchanges a number between ranks
        return not (reached and reached.pop())

    note("sequences are generated to their greatest length: that one has ended before would be read as 0")


#: Module -> what is called with it, and with what notes the rule, after its import.
BY_RULE = {"transformers.masking_utils": one_sequence_a_row, "transformers.generation.utils": by_length}

#: What is known of tensors on the GPU, where it is followed: one `known.Known`.
contents: list = []


def known(tensor) -> bool:
    """Whether what is read of a tensor is its content."""
    return not tensor.is_cuda or any(content.of(tensor) is not None for content in contents)


#: How many rows masks find, where a rule says so: the innermost one's.
counted: list[int] = []

#: What the report says where `cudnn_attention` was called.
ATTENDS = "PyTorch chooses cuDNN's attention on this GPU: its tensors are asked for, and what it works in by the rule that an H200 showed"


def without_cudnn(torch) -> None:
    """Keep cuDNN off, whatever the script says: it has no plans here. What stands in for its attention and convolutions is elsewhere."""
    torch.backends.cudnn.enabled = False
    torch._C._set_cudnn_enabled = lambda on: None
    type(torch.backends.cudnn).enabled = property(lambda self: False, lambda self, on: None)


def cudnn_attention(torch, seen: Callable[[], None]) -> object:
    """Let PyTorch choose cuDNN's attention where it does on the GPU, and ask for the tensors that it takes.

    Source: PyTorch, `aten/src/ATen/native/cudnn/MHA.cpp`: output as the query lies, a number in fp32 for each query, seed and offset;
    in backward a copy of the output's gradient where it lies otherwise, and three gradients. What cuDNN works in, as 15 shapes took it
    on an H200 (`labs/records/scripts`, cuDNN 9.19): in backward the query's gradient and a number for each query in fp32; where heads
    share keys, gradients of key and value for every query head.

    Returns:
        What keeps it so, as long as it lives.
    """

    def lying_as(like, shape):
        order = sorted(range(len(shape)), key=lambda i: (-like.stride(i), i))
        made = torch.empty([shape[i] for i in order], dtype=like.dtype, device=like.device)
        return made.permute([order.index(i) for i in range(len(shape))])

    def work(query, size):
        torch.empty(size + 256, dtype=torch.uint8, device=query.device)

    def forward(query, key, value, bias, wants_sums, dropout=0.0, causal=False, debug=False, *, scale=None):
        seen()
        seed, offset = (torch.empty((), dtype=torch.int64, device=query.device) for _ in range(2))
        found = lying_as(query, (*query.shape[:3], value.shape[3]))
        sums = torch.empty((*query.shape[:3], 1) if wants_sums else 0, dtype=torch.float32, device=query.device)
        work(query, 0)
        return found, sums, None, None, query.shape[2], key.shape[2], seed, offset, None

    def backward(gradient, query, key, value, found, *rest, **more):
        if gradient.stride() != found.stride():
            gradient = lying_as(found, found.shape).copy_(gradient)
        gradients = tuple(lying_as(one, one.shape) for one in (query, key, value))
        shared = query.shape[1] // key.shape[1]
        spread = shared * (key.nbytes + value.nbytes) if shared > 1 else 0
        work(query, 4 * query.numel() + 4 * query[..., 0].numel() + spread)
        return gradients

    library = torch.library.Library("aten", "IMPL")
    override(library, "_scaled_dot_product_cudnn_attention", forward)
    override(library, "_scaled_dot_product_cudnn_attention_backward", backward)
    return library


def override(library, name: str, function, keys: bool = False, key: str = "CUDA") -> None:
    """Put a function in the place of an operator's CUDA kernel, without PyTorch's warning. To 2.6, `impl` does so without being told to.

    Args:
        keys: whether the function takes the dispatcher's keys before the operator's own arguments. key: of the kernel.
    """
    told = {"allow_override": True} if "allow_override" in inspect.signature(library.impl).parameters else {}
    told |= {"with_keyset": True} if keys else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl(name, function, key, **told)


def normal_without_a_look(torch) -> None:
    """Have `torch.normal` not ask the GPU whether every deviation is positive. Its other steps, and what they take, are the same."""

    @instead(torch)
    def normal(original, mean=0.0, std=1.0, *size, **more):
        if size or {"size", "out"} & more.keys() or not (torch.is_tensor(std) and std.is_cuda):
            return original(mean, std, *size, **more)
        shape = torch.broadcast_shapes(std.shape, mean.shape) if torch.is_tensor(mean) else std.shape
        return torch.empty(shape, dtype=std.dtype, device=std.device).normal_(**more).mul_(std).add_(mean)
