"""Aligning a model: which models stand on each GPU, what each of them holds, and the peak of the step that trains the policy."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from typing import Literal, final, get_args

from .. import units
from ..ask.choices import DTYPE_BYTES, OPTIMIZERS
from ..ask.objectives import Objective, Reference, Scorer
from ..ask.setup import Setup
from ..catalog import Gpu, Model
from ..catalog.weights import summed
from ..common import checks
from ..common.tables import Table, picked
from ..rules import ALIGNED, GENERATING, ROLLOUT, check
from ..theory import alignment as passes
from ..theory import letters
from ..theory.budget import Budget, budget
from ..theory.sharding import share
from .colocated import ENGINE, Timeline, phases
from .engines import Engine, EngineServing, check_requests, served
from .headroom import Headroom, computes, kept_free
from .serving import cache_bytes
from .work import standing

Method = Literal["dpo", "ppo", "grpo"]
#: The models of each method, in the order in which they are shown.
MODELS: Mapping[Method, tuple[str, ...]] = {
    "dpo": ("policy", "reference"),
    "ppo": ("policy", "value model", "reference", "reward model"),
    "grpo": ("policy", "reference"),
}
#: How models that do not train stand beside the policy: a whole copy on each GPU, divided as FSDP divides weights, or not at all.
Frozen = Literal["whole", "sharded", "none"]
#: What generates with: a copy of the policy's weights in 16 bits, or the trainer's own.
Weights = Literal["copy", "shared"]
#: Those that train.
TRAINED = ("policy", "value model")


@final
@dataclass(frozen=True, kw_only=True)
class Rollout:
    """What generates the samples that PPO and GRPO learn from, beside the trainer on each GPU; `Alignment.timeline` says how they take turns.

    Attributes:
        sequences: how many are in its cache at once: prompts times samples of each. context: tokens of each, prompt and answer.
        weights: a `copy` of the policy's, as an inference engine has, or the trainer's own, `shared`.
        tensor_parallel: GPUs that divide one copy: matrices and tables by rows or columns, each expert's too, and the cache by
            heads, not norms, routers and what compresses to a latent. Where key and value heads are fewer, or one latent is cached for all heads, several hold the same of the cache.
        asleep: whether weights and cache are freed while the policy learns. level: of that sleep, as vLLM's: 1 keeps the
            weights in the host's memory, 2 drops them. (trl 1.16 has 2: the next thing is new weights.)
        engine: an `Engine` that decides on the GPU how much its cache is, and what it takes beside: then `sequences` are to fit
            that. Its captured graphs, and what is outside PyTorch, stay while it sleeps.
        staged: whether an engine that wakes takes its cache only when it has the new weights. bucket: bytes of gathered weights on their
            way at once; 0 for one tensor after another, the largest of them.
        offloaded: whether weights, gradients and states of the trainer stand in the host's memory while the engine generates.
        versions: of weights that an engine has at once: 2 where it generates with the last ones as new ones arrive.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    sequences: int
    context: int
    weights: Weights = "copy"
    tensor_parallel: int = 1
    asleep: bool = False
    level: int = 2
    engine: Engine | None = None
    staged: bool = True
    bucket: int = 0
    offloaded: bool = False
    versions: int = 1

    def __post_init__(self):
        for field in ("sequences", "context", "tensor_parallel"):
            checks.whole("Rollout", field, getattr(self, field), 1, 2**27)
        checks.one_of("Rollout", "weights", self.weights, get_args(Weights))
        for field in ("asleep", "staged", "offloaded"):
            checks.flag("Rollout", field, getattr(self, field))
        checks.whole("Rollout", "level", self.level, 1, 2)
        checks.whole("Rollout", "versions", self.versions, 1, 2)
        checks.whole("Rollout", "bucket", self.bucket, 0, 2**50)
        if self.engine is not None:
            checks.kind("Rollout", "engine", self.engine, Engine)
        check(GENERATING, self)

    @classmethod
    def read(cls, text: str) -> "Rollout":
        """From a command's text: `sequences=64 context=4096 asleep=true`, each left out at its default."""
        said = checks.words("Rollout", text, [f.name for f in fields(cls) if f.name != "engine"])
        said = {name: {"true": True, "false": False}.get(value, value) for name, value in said.items()}
        for name in ("sequences", "context"):
            if name not in said:
                raise ValueError(f"Rollout.{name}: missing in {text!r}; allowed: {name}=N")
        return cls(**said)

    def sequence(self, model: Model) -> int:
        """Bytes of one sequence's keys and values in 16 bits, on one GPU. Raises ValueError where heads do not divide so."""
        check(ROLLOUT, self, model)
        whole = cache_bytes(model, self.context)
        return whole if model.latent else whole // model.kv_heads * self._engine.heads(model)

    @property
    def _engine(self):
        """What divides weights and heads as this does."""
        return self.engine or Engine(tensor_parallel=self.tensor_parallel)

    def decided(self, model: Model, gpu: Gpu) -> EngineServing | None:
        """What its engine decides on that GPU; None without one. Raises ValueError where the sequences do not fit its cache."""
        if self.engine is None:
            return None
        found = served(model, gpu, self.context, self.engine)
        check_requests("Rollout.sequences", found.engine, self.sequences)
        if found.most < self.sequences:
            raise ValueError(
                f"Rollout.sequences: {self.sequences:,} of {self.context:,} tokens do not fit the engine's pages; allowed: up to "
                f"{int(found.most):,}, or another Engine"
            )
        return found

    def replicated(self, model: Model) -> str:
        """What of the cache several GPUs hold alike, in words; empty where nothing.

        Source: vLLM, `model_executor/layers/linear.py`, `QKVParallelLinear`; `models/deepseek_v2.py`, `ReplicatedLinear`.
        """
        if self.tensor_parallel == 1 or not model.latent and model.kv_heads >= self.tensor_parallel:
            return ""
        what = "the whole compressed cache: all heads read the same latent."
        if not model.latent:
            alike = self.tensor_parallel // model.kv_heads
            what = f"one of {model.kv_heads} key and value heads: {alike} GPUs hold the same."
        return f"Each of {self.tensor_parallel} GPUs holds {what}"

    def held(self, model: Model, gpu: Gpu | None = None) -> dict[str, int]:
        """Part -> bytes on one GPU while it generates, without what its kernels take for a moment. gpu: where there is an `Engine`."""
        if self.engine is not None:
            if gpu is None:
                raise ValueError(
                    "align.gpu: None with Rollout.engine, which decides by the GPU; allowed: a name, a size, or a Gpu"
                )
            found = self.decided(model, gpu)
            assert found is not None
            weights = self.versions * sum(found.engine.standing(model).values())
            return {"parameters": weights, "cache": found.blocks * found.pool.bytes, "other": found.beside}
        cache = self.sequences * self.sequence(model)
        copy = 2 * self.versions * self._engine.numbers(model)
        return {"parameters": copy if self.weights == "copy" else 0, "cache": cache}


def _models(objective):
    """The models of an objective: GRPO's, without a reference where it has none."""
    return [name for name in MODELS[objective.method] if name != "reference" or objective.reference != "none"]


def _frozen_models(objective, setup):
    """Those that do not train and have weights: with adapters the reference is the policy without them."""
    return [name for name in _models(objective) if name not in TRAINED and not (name == "reference" and setup.adapters)]


@dataclass(frozen=True, eq=False, repr=False)
class Alignment:
    """What aligning a model takes on each GPU.

    Attributes:
        objective, setup: the policy's step. gpu: or None. rollout: or None. headroom: what is kept free of tensors on
            the GPU.
        held: model -> part -> bytes that it keeps from step to step, with all gradients where it trains.
        steps: model -> the budget of one optimizer step of it alone; a DPO reference that runs in the step is within.
        parts: model -> part -> bytes at the peak of the step that takes most; they sum to `peak`. Models learn one after another: while
            one does, another's gradients are not there. learning: the model whose step that is.
        generating: bytes held while samples are generated: the models between steps, where they are not offloaded, and the engine,
            without what its kernels take for a moment. None without a `Rollout`.
        between: model -> part -> bytes between steps, with an engine that is awake.
        scoring: frozen model that stands whole -> bytes held while it scores a batch: all models between steps, and the
            largest moment of its pass, as on one GPU.
    """

    objective: Objective
    setup: Setup
    gpu: Gpu | None
    rollout: Rollout | None
    headroom: Headroom
    held: dict[str, dict[str, int]]
    steps: dict[str, Budget]
    parts: dict[str, dict[str, int]]
    learning: str
    generating: int | None
    scoring: dict[str, int]
    between: dict[str, dict[str, int]]

    def timeline(self) -> Timeline:
        """The phases of one iteration with the engine on the same GPUs: what each holds on a GPU and in the host's memory.

        Raises:
            ValueError: without a `Rollout`.
        """
        if self.rollout is None:
            raise ValueError("align.rollout: None; allowed: a Rollout, whose phases a timeline has")
        return Timeline(tuple(phases(self)), self.gpu, self.objective.model.name)

    @property
    def peak(self) -> int:
        """The most bytes that live on a GPU while a model learns."""
        return _all(self.parts)

    @property
    def peak_at(self) -> str:
        """Where in that model's step."""
        return self.steps[self.learning].peak_at

    @property
    def bytes_per_parameter(self) -> dict[str, int]:
        """Model -> bytes a parameter by the usual rule: 16 for one that trains with Adam in 16 bits with fp32 copies, 2 for a frozen one.

        Raises:
            ValueError: with adapters, or an optimizer whose states are not as large as the weights.
        """
        setup, kind, dtypes = self.setup, OPTIMIZERS[self.setup.optimizer], self.setup.dtypes
        if setup.adapters is not None or kind.states is None:
            field, said = ("adapters", setup.adapters) if setup.adapters else ("optimizer", setup.optimizer)
            raise ValueError(
                f"Setup.{field}: {said} has not so many bytes for each parameter; allowed: full fine-tuning with sgd, momentum, adam, adamw, lion"
            )
        trained, frozen = sum(standing(setup)), DTYPE_BYTES[dtypes.compute]
        return {name: trained if name in TRAINED else frozen for name in self.held if name != ENGINE}

    @property
    def rule(self) -> int:
        """The usual rule's bytes on all GPUs together: so many for each parameter of the policy and of each other model.

        It takes value and reward model for as large as the policy; `held` knows that they have no output head.
        """
        return sum(self.bytes_per_parameter.values()) * self.objective.model.parameters

    @property
    def fits(self) -> bool | None:
        """Whether the peak, and each phase of a timeline, are within what the GPU has for tensors; None without a GPU."""
        if self.gpu is None:
            return None
        turns = () if self.rollout is None else self.timeline().phases
        most = max([self.peak, *self.scoring.values(), *(phase.bytes for phase in turns)])
        return most <= self.headroom.usable(self.gpu, self.setup)

    def table(self) -> Table:
        """Each model at the peak, part by part, in bytes."""
        return _table(self.parts, repr(self))

    def said(self) -> list[str]:
        """What the table does not say."""
        return [line for line in [self.rollout and self.rollout.replicated(self.objective.model)] if line]

    def states(self) -> Table:
        """Each model as it is held, part by part, in bytes: with all gradients, without activations."""
        return _table(self.held)

    def __repr__(self):
        where = "" if self.gpu is None else f"; {'fits' if self.fits else 'does not fit'} {self.gpu.name}"
        gpus = f" on each of {self.setup.gpus} GPUs" if self.setup.gpus > 1 else ""
        at = f"{units.text(self.peak)}, {self.peak:,} B, in the {self.learning}'s {self.peak_at}"
        return " ".join([f"Alignment({self.objective.name}{gpus}: peak {at}{where})", *self.said()])

    def _repr_html_(self):
        return self.table()._repr_html_()

    def as_dict(self) -> dict:
        """As JSON holds it: whole bytes."""
        model = self.objective.model
        return {
            "method": self.objective.method, "model": {"name": model.name, "parameters": int(model.parameters)},
            "reference": self.objective.reference, "setup": self.setup.as_dict(), "gpu": self.gpu and self.gpu.name,
            "rollout": self.rollout and asdict(self.rollout),
            **picked(self, "held parts peak peak_at learning generating scoring fits"),
            "timeline": self.rollout and self.timeline().as_dict(), "said": self.said(),
        }  # fmt: skip


def _all(held):
    """Bytes of all parts of all models."""
    return sum(sum(parts.values()) for parts in held.values())


def _table(held, caption=""):
    names = [name for name in dict.fromkeys(chain(*held.values())) if any(parts.get(name) for parts in held.values())]
    rows = [[model, *(parts.get(n, 0) for n in names), sum(parts.values())] for model, parts in held.items()]
    last = [sum(parts.get(n, 0) for parts in held.values()) for n in names]
    return Table(["model (B)", *names, "in all"], [*rows, ["in all", *last, sum(last)]], caption)


def align(
    method: Method,
    model: Model,
    setup: Setup,
    gpu: Gpu | str | None = None,
    *,
    reference: Reference | None = None,
    frozen: Frozen | None = None,
    rollout: Rollout | None = None,
    headroom: Headroom | None = None,
) -> Alignment:
    """What aligning a model takes on each GPU: policy, reference, value and reward model, and what generates.

    Exact, as a budget: weights, gradients and states of every model, and each trained model's step with the method's
    own loss. Value and reward models have the policy's body and one row for an output head. A frozen model has the data
    type of matrix products; where it stands whole, it scores batches of the step's size. Other scoring is not derived.

    Args:
        method: `dpo`, `ppo` or `grpo`. model: the policy. setup: of its step; with adapters, the reference of `dpo` and `grpo` is the
            policy without them, and adds nothing.
        gpu: to say whether it fits: a name, a size, or a `Gpu`.
        reference: of `dpo` and `grpo`, as of an `Objective`: GRPO has none by default, as TRL; `before` for one.
        frozen: reference and reward model: a `whole` copy on each GPU; with sharding `zero2` or `zero3` also `sharded`; or `none`, where
            they are done with, or stand on other GPUs. By default `whole`, and `none` for `dpo` with reference `before`.
        rollout: what generates beside the trainer, for `ppo` and `grpo`; None for somewhere else.
        headroom: what is kept free of tensors on the GPU.

    Raises:
        ValueError: naming the field, the value and what is allowed; where a step is not derived, what answers instead.
    """
    checks.one_of("align", "method", method, MODELS)
    objective = Objective(model, method) if reference is None else Objective(model, method, reference)
    checks.kind("align", "setup", setup, Setup)
    setup = setup.of(objective.own)
    if frozen is None:
        frozen = "none" if method == "dpo" and objective.reference == "before" else "whole"
    checks.one_of("align", "frozen", frozen, get_args(Frozen))
    headroom, card = kept_free("align", headroom), None if gpu is None else computes(setup, gpu)
    _check(objective, setup, frozen, rollout)
    scored = not objective.in_step
    steps = {"policy": budget(objective, setup)}
    alone = {"policy": steps["policy"] if scored else budget(replace(objective, reference="before"), setup)}
    if "value model" in MODELS[method]:
        steps["value model"] = alone["value model"] = budget(Objective(model, "value"), setup)
    held, between = _held(objective, setup, frozen, alone)
    generating = None
    if rollout is not None:
        held[ENGINE] = between[ENGINE] = rollout.held(model, card)
        generating = _all({ENGINE: held[ENGINE]} if rollout.offloaded else between)
        if rollout.asleep:
            standing = between.pop(ENGINE).get("other", 0)
            between |= {ENGINE: {"other": standing}} if standing else {}
    most = {name: _learning(name, step, between, objective) for name, step in steps.items()}
    learning = max(most, key=lambda name: _all(most[name]))
    scoring = {
        name: _all(between) + _scored(objective, setup, name)
        for name in _models(objective)
        if frozen == "whole" and scored and name not in steps and sum(held[name].values())
    }
    return Alignment(objective, setup, card, rollout, headroom, held, steps, most[learning], learning, generating, scoring, between)  # fmt: skip


def _check(objective, setup, frozen, rollout):
    """Raise ValueError where something is not derived."""
    if frozen != "whole" and objective.in_step:
        raise ValueError(
            f"align.frozen: {frozen!r} with a reference in the step; allowed: 'whole', or reference 'before', which scores pairs first"
        )
    if frozen == "sharded" and not setup.fsdp:
        raise ValueError(
            f"align.frozen: {frozen!r} needs sharding 'zero2' or 'zero3', not {setup.sharding!r}; allowed: 'whole'"
        )
    if frozen == "sharded" and not _frozen_models(objective, setup):
        raise ValueError(
            f"align.frozen: {frozen!r} with {objective.method}, in which no other model stands frozen; allowed: None"
            + "; or reference 'before'" * (objective.reference == "none" and not setup.adapters)
        )
    if rollout is not None:
        checks.kind("align", "rollout", rollout, Rollout)
        if objective.method == "dpo":
            raise ValueError(
                "align.rollout: dpo learns from pairs that are there, and generates nothing; allowed: None"
            )
    check(ALIGNED, setup, objective)


def _parts(step, phase=None):
    """Part -> bytes of a step at the end of a phase, or at the peak: those that there are."""
    return {part: size for part, size in (step.parts_at(phase) if phase else step.parts).items() if size}


def _held(objective, setup, frozen, alone):
    """Model -> part -> bytes that it keeps: with all its gradients, and between steps."""
    held, between = {}, {}
    for name in _models(objective):
        if name in alone:
            between[name] = _parts(alone[name], "rest")
            held[name] = between[name] | {"gradients": alone[name].parts_at("after_backward")["gradients"]}
        else:
            held[name] = between[name] = {"parameters": _frozen(objective, setup, name, frozen)}
    return held, between


def _learning(name, step, between, objective):
    """Model -> part -> bytes at the peak of one model's step."""
    mine = _parts(step)
    if name == "policy" and objective.in_step:  # the step's own
        mine["parameters"] -= between["reference"]["parameters"]
    return between | {name: mine}


def _body(objective, name):
    """The model that a frozen one is."""
    return Scorer(objective.model) if name == "reward model" else objective.model


def _scored(objective, setup, name):
    """Bytes that a frozen model's pass takes at its largest moment, beside what stands."""
    sizes = {"batch": objective.sequences * setup.batch, "sequence": setup.sequence}
    alone, model = Setup(**sizes, precision=setup.precision, attention=setup.attention), _body(objective, name)
    reading = passes.scoring(model, alone).at(letters(model, alone))
    return reading.budget().peak - sum(reading.rest.values())


def _frozen(objective, setup, name, frozen):
    """Bytes of a frozen model's weights on one GPU."""
    if frozen == "none" or name not in _frozen_models(objective, setup):
        return 0
    shards = setup.shards if frozen == "sharded" else 1
    numbers = summed(_body(objective, name), lambda w: share(w.shape, shards))
    return DTYPE_BYTES[setup.dtypes.compute] * numbers
