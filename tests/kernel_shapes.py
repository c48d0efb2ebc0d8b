"""Of which sizes kernels are asked what they take for themselves: `kernels.py` answers."""

SUMS = [(8192, 2304), (8192, 1280), (1020, 768), (1021, 768), (5115, 300), (2331, 900), (131072, 768)]
NORMS = [(65536, 768), (65537, 768), (80000, 1600), (131072, 2048)]
TABLES = [
    (8192, 50257, 768), (3072, 50257, 768), (3073, 50257, 768), (65536, 50257, 768), (20000, 528, 384), (20000, 1000, 384),
    (4609, 300, 16), (8192, 50257, 4), (9217, 50257, 4),
]  # fmt: skip
#: Batch, heads, sequence, width of a head, dropout.
ATTENTIONS = [
    (1, 12, 1024, 64, 0.0), (1, 12, 1024, 64, 0.1), (8, 12, 1024, 64, 0.0), (1, 16, 512, 64, 0.0), (1, 5, 333, 64, 0.0),
    (1, 4, 4096, 128, 0.0), (1, 20, 700, 80, 0.0), (2, 2, 1500, 96, 0.0), (1, 1, 8192, 128, 0.0), (1, 3, 1000, 256, 0.0),
    (1, 8, 1024, 40, 0.0), (2, 4, 130, 32, 0.0), (1, 2, 1, 64, 0.0),
]  # fmt: skip
#: Batch, heads, key heads, sequence, width of a head.
SHARED = [(1, 8, 1, 333, 128), (2, 32, 8, 1024, 64), (1, 4, 2, 130, 32), (1, 8, 2, 1000, 80), (1, 8, 2, 1000, 256)]
#: Tokens, visits of each, experts, their width: about each end of the rules.
VISITS = [
    (64, 2, 4, 256), (128, 2, 4, 256), (129, 2, 2, 256), (1152, 2, 8, 128), (2305, 1, 8, 128), (2048, 2, 8, 128), (4097, 1, 8, 128),
    (4608, 1, 64, 128), (3072, 3, 8, 128), (16384, 2, 8, 64), (32769, 2, 16, 64), (50000, 2, 8, 64),
]  # fmt: skip


def asked(kinds=("fp32", "bf16")) -> list[tuple]:
    """(what, its sizes ..., a type of numbers) of each question."""
    named = {
        "sum": SUMS,
        "norm": NORMS,
        "root norm": NORMS,
        "embedding": TABLES,
        "attention": ATTENTIONS,
        "visits": VISITS,
    }
    found = [(what, *sizes, kind) for what, shapes in named.items() for sizes in shapes for kind in kinds]
    return found + [("shared heads", *sizes, "bf16") for sizes in SHARED if "bf16" in kinds]
