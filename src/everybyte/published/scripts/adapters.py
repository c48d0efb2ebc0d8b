"""A training step of PEFT's own comparison of its methods: Llama 3.2 3B in bf16, adapters in fp32, AdamW, four sequences a step.

Said as `method_comparison/MetaMathQA/run.py` has it. A batch there has sequences of several lengths, so attention has a mask;
how long the longest batch is, is not published.
"""

import argparse
import json

import peft
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def built(given):
    config = LlamaConfig(
        hidden_size=3072, intermediate_size=8192, num_hidden_layers=28, num_attention_heads=24, num_key_value_heads=8, head_dim=128,
        vocab_size=128256, max_position_embeddings=131072, tie_word_embeddings=True, use_cache=True,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    if given.method:
        said = {"task_type": "CAUSAL_LM", **json.loads(given.settings.replace("'", '"'))}
        model = peft.get_peft_model(model, getattr(peft, given.method)(**said))
    return model.train()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", default="", help="a class of PEFT's; none for full fine-tuning")
    parser.add_argument("--settings", default="{}", help="its fields, as JSON with single quotes and no space")
    parser.add_argument("--length", type=int, default=768)
    parser.add_argument("--steps", type=int, default=2)
    given = parser.parse_args()
    model = built(given)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
    shape = (4, given.length)
    for _ in range(given.steps):
        ids = torch.full(shape, 100).to("cuda")
        labels, seen = ids.clone(), torch.ones(4, 1, given.length, given.length, dtype=torch.bool).to("cuda").tril()
        adam.zero_grad()
        outputs = model(input_ids=ids, attention_mask=seen, labels=labels, num_items_in_batch=4 * given.length)
        loss = outputs.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()


main()
