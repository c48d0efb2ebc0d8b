"""What the operations of the reference's functions are called, for people: function -> PyTorch's function -> titles in turn.

What is not here has PyTorch's own name. Of a product of two tensors the titles of both are given too, for their gradients.
"""

_SCORES = {
    "matmul": (("scores", "q", "k"), ("heads", "weights", "v")),
    "mul": ("scaled scores",),
    "masked_fill": ("masked scores",),
    "softmax": ("softmax",),
}
TITLES: dict[str, dict[str, tuple]] = {
    "GPT.forward": {"arange": ("positions",)},
    "GPTStage.forward": {"arange": ("positions",)},
    "GPT.embed": {"add": ("embedding",), "dropout": ("embedding",)},
    "Llama.embed": {"mul": ("embedding scaled",)},
    "turns": {
        "arange": ("pairs", "positions"), "div": ("fractions",), "neg": ("exponents",), "pow": ("speeds",), "mul": ("angles",),
        "cos": ("cosines",), "sin": ("sines",), "float": ("positions",),
    },
    "rotate": {"split": ("q parts", "k parts"), "cat": ("q joined", "k joined")},
    "rotate_all": {
        "float": ("q in fp32", "k in fp32"), "chunk": ("q gradient", "k gradient"),
        "mul": tuple(f"{x}: {turn}" for x in "qk" for turn in ("a cos", "b sin", "b cos", "a sin")),
        "sub": ("q: first", "k: first"), "add": ("q: second", "k: second"), "cat": ("q turned", "k turned"),
        "type_as": ("q turned in 16 bits", "k turned in 16 bits"),
    },
    "OffsetNorm.forward": {"add": ("{}: 1 + weight",), "rms_norm": ("{}",)},
    "Block.forward": {"add": ("residual 1", "residual 2")},
    "LlamaBlock.forward": {"add": ("residual 1", "residual 2")},
    "Attention.forward": {
        "chunk": ("gradients",), "view": ("q", "k", "v", "heads"), "contiguous": ("heads merged",), "dropout": ("out",),
    },
    "Attention.eager_attention": _SCORES | {"eq": ("causal mask",), "dropout": ("weights",)},
    "GroupedAttention.forward": {"split": ("gradients",), "view": ("q", "k", "v"), "reshape": ("heads merged",)},
    "GroupedAttention.eager_attention": _SCORES | {
        "repeat_interleave": ("k", "v"), "ones": ("all positions",), "triu": ("causal mask",), "type_as": ("weights cast",),
    },
    "MLP.forward": {"dropout": ("down",)},
    "GatedMLP.forward": {
        "chunk": ("gradients",), "mul": (("product", "product backward, to the gate", "product backward, to up"),),
    },
    "Loss.forward": {"view": ("logits", "targets")},
    "ChunkedLoss.forward": {
        "view": ("chunks", "targets"), "chunk": ("chunks", "chunks"), "add": ("sum of the chunks' losses",) * 99,
        "div": ("loss",),
    },
    "LinearCrossEntropy.forward": {"view": ("rows", "targets")},
    "Experts.forward": {"view": ("experts' tokens", "experts")},
    "Experts.route": {
        "float": ("router's logits in fp32",), "softmax": ("router's softmax",), "sum": ("sum of a token's weights",),
    },
    "Experts.visit": {
        "reshape": ("visits' weights", "visits"), "sort": ("visits sorted",), "floor_divide": ("visits' tokens",),
        "index": ("visits' rows", "visits' weights sorted", "visits back in order"), "int": ("visits in int32",),
        "histc": ("visitors",), "cumsum": ("experts' ends",), "chunk": ("experts' gate and up gradient",),
        "mul": ("experts' product", "visits weighted"), "empty_like": ("visits' places",), "arange": ("visits counted",),
        "view": ("visits",), "sum": ("visits added",), "to": ("experts cast",),
    },
    "ParallelExperts.visit": {
        "reshape": ("visits' weights", "visits"), "sort": ("visits sorted", "visits from all sorted"),
        "floor_divide": ("visits' tokens",), "int": ("visits in int32",), "histc": ("visitors",),
        "index": ("visits' rows", "visits' weights sorted", "rows by expert", "rows as they came", "visits back in order"),
        "all_to_all_single": ("visitors from all", "visits from all", "rows from all", "rows back"), "view": ("visitors", "visits"),
        "sum": ("visitors added", "visits added"), "cumsum": ("experts' ends",), "mul": ("visits weighted",), "to": ("experts cast",),
    },
    "OwnExperts.forward": {"chunk": ("experts' gate and up gradient",), "mul": ("experts' product",)},
    "inverse": {"empty_like": ("places", "places"), "arange": ("counted", "counted")},
    "grouped_linear": {
        "to": ("experts' gate and up input cast", "experts' down input cast"), "grouped_mm": ("experts' gate and up", "experts' down"),
    },
}  # fmt: skip
