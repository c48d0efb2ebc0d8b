"""What a run does beside training, by Hugging Face's `Trainer` and PyTorch: `python phases.py FOLDER`.

It prints, after FOUND, each phase's peak and what was left after it, as PyTorch's allocator counted. It knows nothing of rehearsals.
"""

import json
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

FIELDS = {
    "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4,
    "vocab_size": 32003,
}  # fmt: skip
found = {}


def phase(name, action):
    """Do it, and note its peak and what is left."""
    torch.cuda.reset_peak_memory_stats()
    value = action()
    stats = torch.cuda.memory_stats()
    found[name] = [
        stats["requested_bytes.all.peak"],
        stats["requested_bytes.all.current"],
        stats["reserved_bytes.all.peak"],
    ]
    return value


torch.manual_seed(0)
rows = torch.randint(32003, (48, 256))
data = [{"input_ids": row, "labels": row.clone()} for row in rows]


def trainer(**more):
    """Of a new model."""
    said = {
        "max_steps": 3,
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "bf16": True,
        "report_to": [],
    }
    arguments = TrainingArguments(output_dir=sys.argv[1], save_strategy="no", **(said | more))
    return Trainer(
        model=LlamaForCausalLM(LlamaConfig(use_cache=False, **FIELDS)),
        args=arguments,
        train_dataset=data,
        eval_dataset=data,
    )


one = trainer()
phase("train", one.train)
phase("evaluate, logits kept", lambda: one.evaluate() and None)
phase("predict, logits kept", lambda: one.predict(data) and None)
one.args.eval_accumulation_steps = 2
phase("predict, logits moved every 2 batches", lambda: one.predict(data) and None)
one.args.prediction_loss_only = True
phase("evaluate, the loss alone", lambda: one.evaluate() and None)
file = f"{sys.argv[1]}/state.pt"
phase("save", lambda: torch.save({"model": one.model.state_dict(), "optimizer": one.optimizer.state_dict()}, file))
loaded = phase("load onto the GPU", lambda: torch.load(file, map_location="cuda", weights_only=True))
phase("load_state_dict of the model", lambda there=loaded: one.model.load_state_dict(there["model"]) and None)
phase("load_state_dict of the optimizer", lambda there=loaded: one.optimizer.load_state_dict(there["optimizer"]))
del loaded
phase("and without what was loaded", lambda: None)
one.model.config.use_cache = True
prompt = rows[:8, :128].to("cuda")
phase("generate", lambda: one.model.generate(prompt, max_new_tokens=64, do_sample=False, pad_token_id=0) is None)
print("FOUND", json.dumps(found))
