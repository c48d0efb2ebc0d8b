"""TRL's `SFTTrainer` on a small Llama, padded rows of tokens: `python sft.py FOLDER WORDS`. WORDS: the loss's type, and full for checkpointing.

It knows nothing of rehearsals.
"""

import sys

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

words = sys.argv[2].split(",")
torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=1024, intermediate_size=2816, num_hidden_layers=4, num_attention_heads=16, num_key_value_heads=4, vocab_size=32003,
)  # fmt: skip
rows = [torch.randint(32003, (length,)).tolist() for length in (512, 384, 300, 200) * 8]
arguments = SFTConfig(
    output_dir=sys.argv[1], max_steps=4, per_device_train_batch_size=4, bf16=True, report_to=[], save_strategy="no", max_length=512,
    gradient_checkpointing="full" in words, loss_type=words[0],
    dataset_kwargs={"skip_prepare_dataset": True}, remove_unused_columns=False,
)  # fmt: skip


words_of = {"<pad>": 0, "<unk>": 1, "</s>": 2}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel(words_of, "<unk>")),
    pad_token="<pad>",
    unk_token="<unk>",
    eos_token="</s>",
)
trainer = SFTTrainer(
    model=LlamaForCausalLM(config),
    args=arguments,
    train_dataset=Dataset.from_dict({"input_ids": rows}),
    data_collator=DataCollatorForLanguageModeling(pad_token_id=0),
    processing_class=tokenizer,
)
trainer.train()
