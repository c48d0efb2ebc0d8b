"""The articles' calls of PyTorch, each in its smallest form, and PyTorch's message on each."""

import warnings
from functools import cache


@cache
def outcome(name: str) -> str:
    """PyTorch's error or warning on a call of `SAMPLES`, in one line; "" where there is none.

    Raises:
        ValueError: where there is no PyTorch.
    """
    try:
        import torch
    except ImportError as error:
        raise ValueError(f"samples.{name}: {error}; it needs PyTorch: pip install 'everybyte[dryrun]'") from error
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = SAMPLES[name](torch)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    gone = [w for w in said if issubclass(w.category, FutureWarning | DeprecationWarning)]
    return found or "".join(
        f"{w.category.__name__}: {str(w.message).replace('`', '').split('. ')[0]}" for w in gone[:1]
    )


def _amp_autocast(torch):
    torch.cuda.amp.autocast(dtype=torch.bfloat16)


def _amp_scaler(torch):
    torch.cuda.amp.GradScaler()


def _amp_autocast_device(torch):
    torch.cuda.amp.autocast(device_type="cuda", dtype=torch.bfloat16)


def _autocast(torch):
    torch.autocast(device_type="cuda", dtype=torch.bfloat16)


def _disabled_scaler(torch):
    scale = torch.amp.GradScaler("cuda", enabled=False).get_scale()
    return "" if scale == 1 else f"the scale is {scale}"


def _checkpointed(torch):
    """A checkpointed layer has the same gradient as without checkpointing."""
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 8)).double()
    x = torch.ones(2, 8, dtype=torch.float64, requires_grad=True)
    kept = torch.autograd.grad(layer(x).sum(), x)[0]
    again = torch.autograd.grad(checkpoint(layer, x, use_reentrant=False).sum(), x)[0]
    return "" if torch.equal(kept, again) else "another gradient"


def _accumulated(torch):
    """Losses divided by the number of micro-batches add up to the gradient of the whole batch's mean."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 3).double()
    x, y = torch.randn(8, 8, dtype=torch.float64), torch.arange(8) % 3
    loss = torch.nn.functional.cross_entropy
    whole = torch.autograd.grad(loss(layer(x), y), layer.weight)[0]
    for part, wanted in zip(x.chunk(4), y.chunk(4), strict=True):
        (loss(layer(part), wanted) / 4).backward()
    return "" if torch.allclose(whole, layer.weight.grad, rtol=1e-12, atol=0) else "another gradient"


def _zero_grad_keeps(torch):
    """`zero_grad()` alone is said to keep the gradient's tensor."""
    weight = torch.nn.Parameter(torch.ones(2))
    weight.sum().backward()
    torch.optim.SGD([weight]).zero_grad()
    return "" if weight.grad is not None else "zero_grad() drops it: set_to_none=True is the default since 2.0"


def _fsdp_stages(torch):
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
    found = [ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD]
    return "" if found and FullyShardedDataParallel and transformer_auto_wrap_policy else "missing"


def _has(*names):
    def look(torch):
        home = {"cuda": torch.cuda, "memory": torch.cuda.memory}
        missing = [name for name in names if not hasattr(home[name.partition(".")[0]], name.partition(".")[2])]
        return f"AttributeError: no torch.cuda.{missing[0].removeprefix('cuda.')}" if missing else ""

    return look


def _oom_is_runtime_error(torch):
    return "" if issubclass(torch.cuda.OutOfMemoryError, RuntimeError) else "it is no RuntimeError"


def _total_loss_keeps_graph(torch):
    """A sum of losses keeps their graphs; a sum of their numbers keeps none."""
    weight = torch.nn.Parameter(torch.ones(2))
    total = sum(weight.square().sum() for _ in range(3))
    numbers = sum(weight.square().sum().item() for _ in range(3))
    return "" if total.grad_fn is not None and isinstance(numbers, float) else "no graph is kept"


def _snapshot_without_trace(torch):
    """`memory_snapshot()` is said to export a trace."""
    import inspect

    source = inspect.getsource(torch.cuda.memory_snapshot)
    return "it gives the segments, and no trace: _dump_snapshot writes the file" if '["segments"]' in source else ""


def _profile_sorted(torch):
    """A profile's table takes the name of the GPU's column."""
    from torch.autograd.profiler_legacy import profile

    with profile(profile_memory=True) as said:
        torch.ones(2).exp()
    return "" if said.key_averages().table(sort_by="cuda_memory_usage", row_limit=10) else "no table"


#: Name -> a function of torch that makes the call. It returns "", or what is wrong where nothing is raised or warned of.
SAMPLES = {
    "accumulated": _accumulated,
    "amp autocast": _amp_autocast,
    "amp autocast, device_type": _amp_autocast_device,
    "amp GradScaler": _amp_scaler,
    "autocast": _autocast,
    "checkpoint": _checkpointed,
    "disabled scaler": _disabled_scaler,
    "FSDP stages": _fsdp_stages,
    "load snapshot": _has("memory._load_snapshot"),
    "dump snapshot": _has("memory._dump_snapshot"),
    "memory statistics": _has(
        "cuda.memory_allocated", "cuda.memory_reserved", "cuda.max_memory_allocated", "cuda.reset_peak_memory_stats"
    ),
    "memory snapshot": _snapshot_without_trace,
    "memory summary": _has("cuda.memory_summary"),
    "OutOfMemoryError": _oom_is_runtime_error,
    "profile, sorted": _profile_sorted,
    "record history": _has("memory._record_memory_history", "memory._snapshot"),
    "total loss": _total_loss_keeps_graph,
    "zero_grad": _zero_grad_keeps,
}
