"""Expert parallelism in a rehearsal: how many tokens go to each rank is read off the GPU, so they are spread evenly, by rule, and said.

As many tokens as a rank sends it receives, and each of its experts gets as many: what a router that is balanced does.
"""

from collections.abc import Callable

from . import others

SAID = "tokens are spread evenly over the experts, whatever the router says: a rank whose experts are wanted more gets more"


def even(total: int, parts: int) -> list[int]:
    """A number of tokens in whole parts, the first ones larger by one where it does not divide."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def in_megatron(dispatchers, note: Callable[[str], None]) -> None:
    """Have Megatron-LM's all-to-all dispatcher count evenly. The tensors that it counts with are its own, and its masks find that many."""

    @others.instead(dispatchers.MoEAlltoAllTokenDispatcher)
    def preprocess(count, self, routing_map):
        found = count(self, routing_map)
        if not self.drop_and_pad:
            note(SAID)
            each = even(routing_map.size(0) * self.config.moe_router_topk, self.num_experts)
            here = [each[expert] for expert in self.local_expert_indices]
            _fill(found, [self.ep_size * self.tp_size * tokens for tokens in here])
            if self.ep_size > 1 or self.tp_size > 1:
                own = self.num_local_experts
                _fill(self.input_splits, [sum(each[i * own : (i + 1) * own]) for i in range(self.ep_size)])
                _fill(self.output_splits, [sum(here)] * self.ep_size)
                _fill(self.output_splits_tp, [self.ep_size * sum(here)] * self.tp_size)
            if self.num_local_experts > 1:
                _fill(self.num_global_tokens_per_local_expert, here * (self.ep_size * self.tp_size))
        return found

    @others.instead(dispatchers)
    def permute(sort, tokens, routing_map, *args, num_out_tokens=None, **kwargs):
        others.counted.extend([num_out_tokens] if isinstance(num_out_tokens, int) else [])
        try:
            return sort(tokens, routing_map, *args, num_out_tokens=num_out_tokens, **kwargs)
        finally:
            others.counted.clear()


def in_torchtitan(parallel, note: Callable[[str], None]) -> None:
    """Have torchtitan's exchange of tokens send as many to each rank, and receive as many. The lists of both stay the same for its way back."""
    if not hasattr(parallel, "all_to_all_single_autograd"):
        return

    @others.instead(parallel)
    def all_to_all_single_autograd(exchange, tokens, output_splits, input_splits, group):
        if sum(input_splits) != tokens.shape[0]:
            note(SAID)
            input_splits[:] = even(tokens.shape[0], len(input_splits))
            output_splits[:] = [input_splits[0]] * len(output_splits)
        return exchange(tokens, output_splits, input_splits, group)


def _fill(counts, numbers):
    """Copy numbers from the host: what is read of them later is known."""
    counts.copy_(counts.new_tensor(numbers, device="cpu").view(counts.shape))


#: Module -> what is called with it, and with what notes the rule, after its import.
BY_RULE = {
    "megatron.core.transformer.moe.token_dispatcher": in_megatron,
    "torchtitan.distributed.expert_parallel": in_torchtitan,
}
