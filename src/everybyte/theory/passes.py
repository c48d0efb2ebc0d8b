"""Every dimension is a pass over a `Step`, and `PASSES` is their order: that of `parallelize` in `reference/mesh/trainer.py`.

A pass reads the setup, and changes what the step is made of; where its dimension is not divided it does nothing. What a dimension
makes, holds and frees while the step runs is said in a file of its own: `tensor_parallel`, `expert_parallel`, `context`,
`pipelines`, `autograd` (checkpointing) and `sharding`.
"""

from ..ask.choices import LIBRARIES
from ..catalog.weights import adapters, buffered, layers, learned
from .context import Ring, Ulysses
from .expert_parallel import OWN, Experts
from .flat import FlatSharding
from .letters import Letter, up
from .sharding import Sharding
from .tensor_parallel import TensorParallel


def tensor(step):
    """Heads, units and vocabulary are those of one GPU."""
    mesh, whole = step.setup.mesh, step.model
    if mesh.tensor > 1:
        parts = Letter(mesh.tensor, "t")
        step.model = type(whole)(step.whole, parts)
        step.split = TensorParallel(parts, mesh, step.sequence, whole)


def experts(step):
    """Of a mixture's experts there are those of one GPU, and FSDP cuts them apart from the rest."""
    if step.setup.mesh.expert > 1:
        step.experts = Experts(step.whole, step.setup)
        step.own = step.experts.cut


def context(step):
    """Attention goes around a ring, or swaps heads for tokens."""
    mesh, parts = step.setup.mesh, Letter(step.setup.mesh.context, "C")
    if mesh.rotation == "ulysses":
        step.ring = Ulysses(parts)
    elif mesh.context > 1:
        step.ring = Ring(parts, step.in_ring, mesh.rotation)


def stages(step):
    """The networks: one, or of a pipeline one for each of the GPU's stages; and the weights that they hold and train."""
    setup, model = step.setup, step.model
    found = (w for w in learned(model) if w.count and layers(step.whole)[w.group] and w.group not in step.without)
    step.weights = step.trained = step.counted(found)
    beside = None
    if setup.adapters:
        kind = step.tape.compute if setup.fsdp and setup.dtypes.autocast else step.beside
        beside = Letter(setup.adapters.rank, "r_A"), kind
        step.trained = step.counted(adapters(model, beside[0], setup.adapters.takes))
    step.networks = step.made(beside)
    for network in step.networks:
        network.sharding = None
        if step.ring:
            network.flash = step.ring


def checkpointing(step):
    """Nothing here: the reference's source, which a network runs, calls its blocks so."""


def data(step):
    """FSDP divides each network; ZeRO-1 has buffers of weights and of gradients, experts their own; DDP's buckets may be the gradients."""
    setup = step.setup
    if setup.fsdp_version == 1:
        (network,) = step.networks
        network.sharding = FlatSharding(step, network)
        step.trained = network.sharding.held()
        step.tensors = [(weight.group, numbers, count) for weight, numbers, count in step.trained]
    elif setup.fsdp:
        for network in step.networks:
            network.sharding = Sharding(step, network, step.weights_of(network), step.shards)
        step.tensors = [(w.group, step.share(w), count) for w, _, count in step.trained]
    elif setup.sharding == "zero1":
        library = setup.precision in LIBRARIES  # whose gradients are added to another buffer, and dropped
        step.flats, step.tensors, own = [], [], OWN if step.experts else ()
        groups = [("P", False, step.shards), *([("P_e", True, Letter(setup.expert_shards, "G_e"))] if own else [])]
        for letter, of_experts, sharers in groups:
            numbers = (n * count for w, n, count in step.trained if w.name.endswith(own) == of_experts)
            each = up(Letter(buffered(step.whole, setup.gpus) if library else int(sum(numbers)), letter), sharers)
            step.flats.append(sharers * each)
            step.tensors.append(("last", each, 1))
        for parameter in step.parameters():
            if parameter.node is not None and not library:
                parameter.grad = parameter  # a view of a buffer, which each gradient is added to
    elif setup.buckets == "views":
        for parameter in step.parameters():
            parameter.hooks.append(step.into_bucket)


#: In the order in which they are applied.
PASSES = (tensor, experts, context, stages, checkpointing, data)
