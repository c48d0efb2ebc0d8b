"""What the operations of the reference's functions are called, for people: function -> PyTorch's function -> titles in turn.

What is not here has PyTorch's own name. Of a product of two tensors the titles of both are given too, for their gradients.
"""

from collections import Counter

_SCORES = {
    "matmul": (("scores", "q", "k"), ("heads", "weights", "v")),
    "mul": ("scaled scores",),
    "softmax": ("softmax",),
}
_HIDDEN = _SCORES | {"masked_fill": ("masked scores",)}
TITLES: dict[str, dict[str, tuple]] = {
    "GPT.forward": {"arange": ("positions",)},
    "GPTStage.forward": {"arange": ("positions",)},
    "GPT.embed": {"add": ("embedding",), "dropout": ("embedding",)},
    "Llama.embed": {"mul": ("embedding scaled",)},
    "Llama.rows": {"to": ("scale cast",), "mul": ("embedding scaled",)},
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
    "OffsetNorm.forward": {
        "add": ("{}: 1 + weight",), "rms_norm": ("{}",), "float": ("{}: fp32", "{}: weight in fp32"), "mul": ("{}: times weight",),
        "type_as": ("{}",),
    },
    "Block.forward": {"add": ("residual 1", "residual 2")},
    "LlamaBlock.forward": {"add": ("residual 1", "residual 2")},
    "Attention.forward": {
        "chunk": ("gradients",), "view": ("q", "k", "v", "heads"), "contiguous": ("heads merged",), "dropout": ("out",),
    },
    "Attention.eager_attention": _HIDDEN | {"eq": ("causal mask",), "dropout": ("weights",)},
    "GroupedAttention.forward": {"split": ("gradients",), "view": ("q", "k", "v"), "reshape": ("heads merged",)},
    "GroupedAttention.eager_attention": _HIDDEN | {
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
    "CausalLoss.forward": {
        "float": ("logits in fp32",), "pad": ("labels padded",), "contiguous": ("labels shifted",), "view": ("logits", "targets"),
    },
    "log_probabilities": {"log_softmax": ("log-softmax",), "gather": ("gathered",)},
    "of_sequences": {"mul": ("answers alone",) * 2, "sum": ("sequences' log-probabilities",) * 2},
    "preference": {
        "sub": ("ahead of the reference", "margin"), "chunk": ("pair",), "mul": ("scaled margin",), "logsigmoid": ("log-sigmoid",),
        "mean": ("mean",), "neg": ("loss",),
    },
    "surrogate": {
        "sub": ("ahead of the old", "reference ahead", "divergence and 1", "divergence", "gain less divergence"),
        "exp": ("ratio", "inverse ratio"), "clamp": ("clipped ratio",), "minimum": ("smaller gain",),
        "mul": ("gain", "clipped gain", "scaled divergence"),
    },
    "clipped_square": {
        "sub": ("ahead of the old", "error", "clipped error"), "clamp": ("clipped",), "add": ("clipped values",),
        "square": ("squared error", "squared clipped error"), "maximum": ("larger error",),
    },
    "over_answers": {"mul": ("answers alone", "scaled sum"), "sum": ("sum", "tokens"), "div": ("loss",)},
    "Experts.forward": {"view": ("experts' tokens", "experts")},
    "own_bias": {"index": ("experts' gate and up bias", "experts' down bias")},
    "Experts.route": {
        "topk": ("largest",),
        "float": ("router's logits in fp32",), "softmax": ("router's softmax",), "sum": ("sum of a token's weights",),
    },
    "Experts.visit": {
        "reshape": ("visits' weights", "visits"), "sort": ("visits sorted",), "floor_divide": ("visits' tokens",),
        "index": ("visits' rows", "visits' weights sorted", "visits back in order"), "int": ("visits in int32",),
        "histc": ("visitors",), "cumsum": ("experts' ends",), "chunk": ("experts' gate and up gradient",),
        "add_": ("experts' gate and up with bias", "experts' down with bias"), "mul": ("experts' product", "visits weighted"), "empty_like": ("visits' places",), "arange": ("visits counted",),
        "view": ("visits",), "sum": ("visits added",), "to": ("experts cast",),
    },
    "Experts.gated": {"chunk": ("experts' gate and up gradient",), "mul": ("experts' product",)},
    "ParallelExperts.visit": {
        "reshape": ("visits' weights", "visits"), "sort": ("visits sorted", "visits from all sorted"),
        "floor_divide": ("visits' tokens",), "int": ("visits in int32",), "histc": ("visitors",),
        "index": ("visits' rows", "visits' weights sorted", "rows by expert", "rows as they came", "visits back in order"),
        "all_to_all_single": ("visitors from all", "visits from all", "rows from all", "rows back"), "view": ("visitors", "visits"),
        "sum": ("visitors added", "visits added"), "cumsum": ("experts' ends",), "mul": ("visits weighted",), "to": ("experts cast",),
    },
    "OwnExperts.forward": {"chunk": ("experts' gate and up gradient",), "mul": ("experts' product",)},
    "inverse": {"empty_like": ("places", "places"), "arange": ("counted", "counted")},
    "all_tokens": {
        "repeat_interleave": ("k repeated", "v repeated"), "contiguous": tuple(f"{x} for each GPU" for x in "qkv"), "reshape": tuple(f"{x} by GPU" for x in "qkvqkv"),
    },
    "Exchange.forward": {"new_empty": tuple(f"{x} of all tokens" for x in ("q", "k", "v")) + ("result of own tokens",)},
    "Exchange.backward": {"new_empty": ("result's gradient of own heads", "v's gradient of own tokens", "k's gradient of own tokens", "q's gradient of own tokens"), "contiguous": ("gradient for each GPU",) * 4},
    "exchanged": {"contiguous": tuple(f"{x} head by head" for x in "qkv"), "reshape": ("result of own heads", "result")},
    "token_by_token": {"contiguous": ("result token by token",)},
    "own_tokens": {"contiguous": ("result for each GPU",), "reshape": ("result by GPU", "result token by token")},
    "grouped_linear": {
        "to": ("experts' gate and up input cast", "experts' down input cast"), "grouped_mm": ("experts' gate and up", "experts' down"),
    },
    "RMSNorm.forward": {
        "float": ("{}: fp32",), "pow": ("{}: square",), "mean": ("{}: mean",), "add": ("{}: plus epsilon",), "rsqrt": ("{}: inverse root",),
        "to": ("{}: cast",), "mul": ("{}: normed", "{}"),
    },
    "WideNorm.forward": {
        "float": ("{}: fp32",), "pow": ("{}: square",), "mean": ("{}: mean",), "add": ("{}: plus epsilon",), "rsqrt": ("{}: inverse root",),
        "mul": ("{}: normed", "{}: times weight"), "to": ("{}",),
    },
    "normed": {
        "pow": ("{}: square",), "mean": ("{}: mean",), "add": ("{}: plus epsilon",), "rsqrt": ("{}: inverse root",), "mul": ("{}: normed",),
    },
    "gelu_tanh": {
        "mul": ("gelu: half", "gelu: scaled cube", "gelu: scaled sum", "gelu"), "pow": ("gelu: cube",), "tanh": ("gelu: tanh",),
        "add": ("gelu: sum", "gelu: plus one"),
    },
    "Rotary.forward": {
        "float": ("positions in fp32",), "mul": ("angles", "cosine scaled", "sine scaled"), "cat": ("angles twice",),
        "cos": ("cosine",), "sin": ("sine",), "to": ("cosine cast", "sine cast"),
    },
    "rotated": {"mul": ("q cosine", "q sine", "k cosine", "k sine"), "add": ("q rotated", "k rotated")},
    "swapped": {"neg": ("q half negated", "k half negated"), "cat": ("q halves swapped", "k halves swapped")},
    "paired": {
        "mul": tuple(f"{x} {turn}" for x in "qk" for turn in ("cosine", "sine") * 2), "sub": ("q: first", "k: first"),
        "add": ("q: second", "k: second"), "cat": ("q rotated", "k rotated"),
    },
    "halved": {
        "chunk": ("q halves", "k halves"), "mul": tuple(f"{x} {turn}" for x in "qk" for turn in ("cosine", "sine") * 2),
        "sub": ("q: first", "k: first"), "add": ("q: second", "k: second"), "cat": ("q rotated", "k rotated"),
    },
    "HalfRotary.forward": {
        "float": ("positions in fp32",), "mul": ("angles", "cosine scaled", "sine scaled"), "cos": ("cosine",), "sin": ("sine",),
        "to": ("cosine cast", "sine cast"),
    },
    "attend_with_sinks": _SCORES | {
        "add": ("scores with mask",), "reshape": ("sinks",), "expand": ("sinks",), "cat": ("scores and sinks",), "max": ("largest scores",),
        "sub": ("scores less the largest",), "dropout": ("weights",), "to": ("weights cast",), "contiguous": ("heads merged",),
    },
    "NarrowExperts.route": {
        "topk": ("largest",), "softmax": ("router's softmax",), "sum": ("sum of a token's weights",), "to": ("weights cast",),
    },
    "BiasedExperts.forward": {"reshape": ("tokens", "experts")},
    "BiasedExperts.route": {"topk": ("largest",), "softmax": ("weights of a token's experts",)},
    "BiasedExperts.gated": {
        "clamp": ("experts' gate clamped", "experts' up clamped"), "sigmoid": ("experts' sigmoid",), "add": ("experts' up and 1",),
        "mul": ("experts' gate scaled", "experts' inner", "experts' product"),
    },
    "PlainNorm.forward": {"float": ("{}: fp32",), "type_as": ("{}: cast",), "mul": ("{}",)},
    "WeightlessNorm.forward": {"float": ("{}: fp32",), "type_as": ("{}",)},
    "ComplexRotary.forward": {"float": ("positions in fp32",), "mul": ("angles", "turns scaled"), "ones_like": ("ones",), "polar": ("turns",)},
    "turn_complex": {
        "float": ("q in fp32", "k in fp32"), "reshape": ("q in pairs", "k in pairs"), "view_as_complex": ("q pairs", "k pairs"),
        "mul": ("q turned", "k turned"), "view_as_real": ("q turned", "k turned"), "flatten": ("q turned", "k turned"),
        "type_as": ("q turned cast", "k turned cast"),
    },
    "Llama4Attention.forward": {
        "view": ("q", "k", "v", "scales"), "arange": ("positions",), "add": ("positions shifted", "positions from 1", "scales"),
        "float": ("positions in fp32",), "div": ("periods",), "floor": ("whole periods",), "log1p": ("logarithms",), "mul": ("logarithms scaled", "q scaled"),
        "expand": ("scales",), "to": ("q cast",),
    },
    "Llama4Block.forward": {"add": ("residual 1", "residual 2"), "view": ("experts",)},
    "Everybody.forward": {
        "reshape": ("tokens", "scores of each expert", "experts' results"), "repeat": ("tokens for each expert",), "mul": ("tokens weighted",),
        "sum": ("experts added",), "add_": ("experts with the shared one",),
    },
    "Everybody.route": {
        "topk": ("largest",), "full_like": ("minus infinity",), "scatter_": ("largest in place",), "float": ("scores in fp32",),
        "sigmoid": ("router's sigmoid",), "to": ("scores cast",),
    },
    "Everybody.visit": {
        "view": ("experts' tokens", "experts' results"), "bmm": ("experts' gate and up", "experts' down"),
        "chunk": ("experts' gate and up gradient",), "mul": ("experts' product",),
    },
    "Chunk.mask": {"zeros": ("tokens of padding",)},
    "chunked": {
        "new_ones": ("true",), "index": ("padding of keys", "padding of queries"), "sub": ("keys after padding", "queries after padding"),
        "floor_divide": ("chunks of keys", "chunks of queries"), "eq": ("same chunk",), "and": ("inside and true", "mask"), "le": ("past",),
    },
    "GptOssBlock.forward": {"add": ("residual 1", "residual 2")},
    "turn_and_join": {"cat": ("q joined", "k joined")},
    "turn_then_join": {"cat": ("q joined", "k joined")},
    "attend": {"reshape": ("heads", "heads"), "contiguous": ("heads merged",)},
    "attend_eagerly": _SCORES | {
        "div": ("scores over the cap",), "tanh": ("tanh of scores",), "mul": ("scaled scores", "capped scores"), "add": ("scores with mask",), "to": ("weights",), "dropout": ("weights",), "contiguous": ("heads merged",),
    },
    "attend_narrowly": _SCORES | {"add": ("scores with mask",), "to": ("weights",), "dropout": ("weights",)},
    "repeated": {"expand": ("keys repeated", "values repeated"), "reshape": ("keys repeated", "values repeated")},
    "mask": {
        "arange": ("sequences", "heads", "queries", "keys") * 2, "add": ("queries shifted", "keys shifted") * 2, "expand": ("mask",) * 2,
    },
    "masked": {"zeros": ("zero",) * 2, "where": ("mask as numbers",) * 2},
    "causal": {"le": ("mask",)},
    "within": {
        "new_ones": ("true",), "sub": ("first that is attended to",), "gt": ("inside the window",), "and": ("inside and true", "mask"),
        "le": ("past",),
    },
    "Growing.put": {"cat": ("keys joined", "values joined")},
    "Window.begin": {"tensor": ("window",)},
    "Window.put": {"cat": ("keys joined", "values joined")},
    "Room.begin": {"zeros": ("keys' room", "values' room"), "tensor": ("tokens counted",)},
    "Room.update": {"arange": ("places",), "add": ("places shifted",)},
    "CappedHead.forward": {"div": ("logits over the cap",), "tanh": ("tanh of logits",), "mul": ("capped logits",)},
    "GemmaBlock.forward": {"add": ("residual 1", "residual 2")},
    "Decoder.places": {"arange": ("positions",), "add": ("positions shifted",)},
    "extended": {"float": ("logits in fp32",), "argmax": ("largest",), "cat": ("tokens joined",)},
    "GPT2.hidden": {"add": ("embedding",), "dropout": ("embedding",)},
    "GPT2Block.forward": {"add": ("residual 1", "residual 2"), "dropout": ("attention", "MLP")},
    "OPT.hidden": {
        "ones": ("ones",), "cumsum": ("ones counted",), "mul": ("positions masked",), "sub": ("positions less one",), "long": ("positions",),
        "add": ("positions shifted", "embedding"),
    },
    "OPTAttention.forward": {"mul": ("q scaled",)},
    "OPTBlock.forward": {"add": ("residual 1", "residual 2"), "dropout": ("attention", "MLP")},
    "LlamaBlock.dropped": {"dropout": ("attention", "MLP")},
    "NeoX.entered": {"dropout": ("embedding",)},
    "NeoXBlock.forward": {"add": ("MLP and attention", "residual"), "dropout": ("attention", "MLP")},
    "LatentAttention.forward": {"reshape": ("heads side by side",), "contiguous": ("heads merged",), "split": ("q", "compressed"), "view": ("q", "latent", "rotary key"), "cat": ("q joined",)},
    "LatentAttention.expanded": {"split": ("expanded",), "view": ("expanded",), "expand": ("rotary key of each head",), "new_empty": ("keys",), "setitem": ("keys' straight part", "keys' rotary part")},
    "SharedExperts.forward": {"view": ("tokens", "tokens", "experts"), "add": ("experts and shared",)},
    "SharedExperts.route": {"topk": ("largest of each group", "largest groups", "largest"), "view": ("scores by group",),
        "float": ("router input in fp32", "router weight in fp32"), "linear": ("router",), "sigmoid": ("router sigmoid",),
        "add": ("scores for choice", "their sum plus epsilon"), "zeros_like": ("groups' mask",), "scatter_": ("groups' mask filled",), "expand": ("groups' mask spread",), "reshape": ("groups' mask spread",),
        "bool": ("mask as flags",), "not": ("mask inverted",), "masked_fill": ("scores masked",), "gather": ("their scores",),
        "sum": ("groups' scores", "their sum"), "mul": ("scores scaled",),
    },
    "Attention.apart": {"view": ("heads apart",) * 3},
    "Attention.attended": {"reshape": ("heads side by side",), "contiguous": ("heads side by side",)},
    "GPT2Attention.forward": {"chunk": ("q, k and v",)},
    "LlamaAttention.forward": {"split": ("q, k and v",)},
    "LlamaAttention.normed": {"view": ("q", "k")},
    "GLMAttention.forward": {"view": ("q", "k", "v")},
    "NeoXAttention.forward": {"chunk": ("q, k and v",), "view": ("heads apart",)},
}  # fmt: skip


class Naming:
    """Titles of the operations in one call of a module, by function and turn, from `TITLES`.

    Args:
        whose: the module's title, of those that have one.
    """

    def __init__(self, whose="", counts=()):
        self.whose, self.counts = whose, Counter(counts)

    def __call__(self, operation, code):
        where = code.co_qualname.partition(".<locals>")[0]
        turn = self.counts[where, operation]
        self.counts[where, operation] += 1
        known = TITLES.get(where, {}).get(operation, ())
        title = known[turn] if turn < len(known) else operation
        return title.format(self.whose) if isinstance(title, str) else title

    def again(self):
        """A copy at the current turn, for what is recomputed."""
        return Naming(self.whose, self.counts)
