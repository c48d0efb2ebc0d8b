"""What of an engine's budget is not derived: tried where the engine is asked for, with the model that it serves."""

from ..catalog.hybrids import WIDE
from .row import Rule, table


def undivided(many, model, mlps=("ffn_width",)):
    """A field of a model that so many GPUs of an engine do not divide, and its size; None for none. Fewer key heads than GPUs are repeated."""
    if not model.latent and model.kv_heads % many and many % model.kv_heads:
        return f"kv_heads {model.kv_heads}"
    sizes = {name: getattr(model, name) for name in ("heads", *mlps, "vocabulary")}
    return next((f"{name} {size}" for name, size in sizes.items() if size % many), None)


def _unread(e, h):
    """Why the bytes of a hybrid's weights are not known from its config, in words; empty where they are, or none are needed."""
    if e.loaded is not None or e.pages is not None:
        return ""
    if e.weights not in ("bf16", "fp16"):
        return f"in {e.weights}"
    if h.stored:
        return "that its quantization_config stores in fewer bits"
    divided = f" divided among {e.tensor_parallel} GPUs" if e.tensor_parallel > 1 else ""
    return "" if h.counted(e.tensor_parallel) else f"as the engine holds those of {h.kind}{divided}"


def _parted(e, m):
    return e.tensor_parallel > 1 and e.loaded is None


_STATED = "Engine(loaded=...), the bytes that its log says: 'Model loading took ... GiB'"
_RUN = "Engine(profile=...), the peak that its log says at VLLM_LOGGING_LEVEL=DEBUG, or pages=..."
#: An engine alone, in the setup's place.
ENGINE = table(
    Rule("Engine.pages", lambda e: e.name == "sglang" and e.pages is not None, "with sglang, whose pool follows from its fraction", "None"),
    Rule("Engine.profile", lambda e: e.name == "sglang" and e.profile is not None, "with sglang, whose passes stand in what its fraction leaves", "None"),
    Rule("Engine.outside", lambda e: e.name == "sglang" and e.outside is not None, "with sglang, whose fraction leaves what that takes", "None"),
    Rule("Engine.batched", lambda e: e.name == "sglang" and e.batched, "with sglang, whose passes stand in what its fraction leaves", "0"),
    Rule("Engine.draft", lambda e: e.name == "sglang" and e.draft is not None, "with sglang, which has a pool of its own for it, is not derived", "None"),
)  # fmt: skip
#: An engine with the model that it serves: where its layers have states, of those with attention.
SERVED = table(
    Rule("Model.causal", lambda e, m: not m.causal, "of {m.name}, which does not generate", "True"),
    Rule("Engine.tensor_parallel", lambda e, m: _parted(e, m) and (m.experts or m.has_positions),
         "with {m.name}: how its weights are divided is not derived", _STATED),
    Rule("Engine.tensor_parallel", lambda e, m: e.tensor_parallel > 1 and undivided(e.tensor_parallel, m),
         "does not divide {f} of {m.name}", "a divisor"),
    Rule("Engine.weights", lambda e, m: _parted(e, m) and e.weights not in ("bf16", "fp16"),
         "divided among {s.tensor_parallel} GPUs is not derived", _STATED),
    Rule("Engine.profile", lambda e, m: e.profile is None and e.pages is None and e.name == "vllm" and m.latent,
         "with latent attention, whose prefill has workspaces of its own, is not derived", _RUN),
    Rule("Engine.draft", lambda e, m: e.draft is not None and e.profile is None and e.pages is None,
         "in the profile run is not derived", "Engine(profile=...) or pages=..."),
    Rule("Engine.draft", lambda e, m: e.draft is not None and (m.windowed_layers or e.draft.windowed_layers or m.latent != e.draft.latent),
         "beside {m.name}: how layers of several kinds are grouped with a draft's is not derived", "a draft and a model whose layers attend alike"),
    Rule("Engine.states", lambda e, m: e.states is not None and e.loaded is None and e.pages is None,
         "without the bytes of its weights, which {m.name} has not all of", _STATED),
    Rule("Engine.states", lambda e, m: e.states is not None and (e.name == "sglang" or e.draft or m.windowed_layers),
         "with sglang, a draft or windows is not derived", "vLLM, and layers that attend to all tokens"),
    Rule("Engine.profile", lambda e, m: e.profile is None and e.pages is None and e.name == "vllm" and e.states is not None,
         "with layers that have a state, whose passes are not derived", _RUN),
    Rule("Engine.state_pages", lambda e, m: e.state_pages > 1 and e.states is None, "with {m.name}, none of whose layers has a state", "1"),
    Rule("Model.window", lambda e, m: e.name == "sglang" and m.windowed_layers,
         "with sglang, which has two pools for it, is not derived", "0, or engine 'vllm'"),
)  # fmt: skip
#: An engine with a model of the catalog, none of whose layers has a state that it says.
STATELESS = table(
    Rule("Engine.state_dtype", lambda e, m: e.state_dtype != "auto", "with {m.name}, whose states no configuration says", "'auto'"),
)  # fmt: skip
#: An engine with a hybrid, which its configuration says.
HYBRID = table(
    Rule("Engine.name", lambda e, h: e.name == "sglang", "with {m.name}, whose layers have a state: its pools for these are not derived", "'vllm'"),
    Rule("Engine.states", lambda e, h: e.states is not None, "with a configuration, which says them", "None"),
    Rule("Engine.draft", lambda e, h: e.draft is not None, "beside {m.name}, whose layers have a state, is not derived", "None"),
    Rule("Engine.state_dtype", lambda e, h: h.kind in WIDE and e.state_dtype not in ("auto", "fp32"),
         "with {m.name}, whose states vLLM keeps in fp32", "'auto' or 'fp32'"),
    Rule("Engine.tensor_parallel", lambda e, h: e.tensor_parallel > 1 and h.states.undivided(e.tensor_parallel),
         "does not divide {f} of {m.name}", "a divisor"),
    Rule("Engine.loaded", _unread, "with {m.name}: weights {f} are not counted", f"{_STATED}, or pages=..."),
)  # fmt: skip
