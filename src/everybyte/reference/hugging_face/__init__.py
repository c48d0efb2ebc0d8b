"""Hugging Face's decoders, short enough to read: what transformers 5.23 computes, in its order and in its types, no more.

Source: github.com/huggingface/transformers, `models/*/modeling_*.py`, `cache_utils.py`, `masking_utils.py`,
`integrations/sdpa_attention.py`, `integrations/moe.py`. Attention is the implementation called `sdpa`, the one without a name.
"""
