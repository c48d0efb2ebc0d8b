"""What PyTorch's allocator was asked for until now."""

import torch


def now() -> tuple[int, int]:
    """(live bytes, the most since the peaks were last reset)"""
    stats = torch.cuda.memory_stats()
    return stats["requested_bytes.all.current"], stats["requested_bytes.all.peak"]
