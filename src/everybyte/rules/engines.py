"""What of an engine's budget is not derived: tried where the engine is asked for, with the model that it serves."""

from .row import Rule, table


def _undivided(e, m):
    """The field of a model that an engine's GPUs do not divide; None for none. Fewer key heads than GPUs are repeated."""
    many = e.tensor_parallel
    if not m.latent and m.kv_heads % many and many % m.kv_heads:
        return "kv_heads"
    return next((name for name in ("heads", "ffn_width", "vocabulary") if getattr(m, name) % many), None)


def _parted(e, m):
    return e.tensor_parallel > 1 and e.loaded is None


_STATED = "Engine(loaded=...), the bytes that its log says: 'Model loading took ... GiB'"
#: An engine alone, in the setup's place.
ENGINE = table(
    Rule("Engine.pages", lambda e: e.name == "sglang" and e.pages is not None, "with sglang, whose pool follows from its fraction", "None"),
    Rule("Engine.draft", lambda e: e.name == "sglang" and e.draft is not None, "with sglang, which has a pool of its own for it, is not derived", "None"),
)  # fmt: skip
#: An engine with the model that it serves: where its layers have states, of those with attention.
SERVED = table(
    Rule("Model.causal", lambda e, m: not m.causal, "of {m.name}, which does not generate", "True"),
    Rule("Engine.tensor_parallel", lambda e, m: _parted(e, m) and (m.experts or m.has_positions),
         "with {m.name}: how its weights are divided is not derived", _STATED),
    Rule("Engine.tensor_parallel", lambda e, m: e.tensor_parallel > 1 and _undivided(e, m),
         lambda e, m: f"does not divide {_undivided(e, m)} {getattr(m, _undivided(e, m))} of {m.name}", "a divisor"),
    Rule("Engine.weights", lambda e, m: _parted(e, m) and e.weights not in ("bf16", "fp16"),
         "divided among {s.tensor_parallel} GPUs is not derived", _STATED),
    Rule("Engine.profile", lambda e, m: e.profile is None and e.pages is None and e.name == "vllm" and m.latent,
         "with latent attention, whose prefill has workspaces of its own, is not derived",
         "Engine(profile=...), the peak that its log says at VLLM_LOGGING_LEVEL=DEBUG, or pages=..."),
    Rule("Engine.draft", lambda e, m: e.draft is not None and e.profile is None and e.pages is None,
         "in the profile run is not derived", "Engine(profile=...) or pages=..."),
    Rule("Engine.draft", lambda e, m: e.draft is not None and (m.windowed_layers or e.draft.windowed_layers or m.latent != e.draft.latent),
         "beside {m.name}: how layers of several kinds are grouped with a draft's is not derived", "a draft and a model whose layers attend alike"),
    Rule("Engine.states", lambda e, m: e.states is not None and e.loaded is None and e.pages is None,
         "without the bytes of its weights, which {m.name} has not all of", _STATED),
    Rule("Engine.states", lambda e, m: e.states is not None and (e.name == "sglang" or e.draft or m.latent or m.windowed_layers),
         "with sglang, a draft, windows or latents is not derived", "vLLM, and layers that attend to all tokens"),
    Rule("Model.window", lambda e, m: e.name == "sglang" and m.windowed_layers,
         "with sglang, which has two pools for it, is not derived", "0, or engine 'vllm'"),
)  # fmt: skip
