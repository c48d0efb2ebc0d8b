"""Exercises of lab 5: optimizers and adapters."""

from ...ask.setup import Lora, Setup
from ..asking import peak, step
from . import answers

_FULL = Setup(precision="bf16-mixed", optimizer_impl="fused")
_LORA = _FULL.replace(adapters=Lora(16, base="bf16"))
_QLORA = _LORA.replace(quantization="nf4")


def _states(setup):
    return step("gpt2", setup).parts_at("rest")["optimizer"]


ANSWERS = {
    "05.1": answers(
        8 * 16 * 12 * (4 * 768 + 2 * 768 + 5 * 768 + 5 * 768),
        one_state=lambda: _states(_LORA) / 2,
        full=lambda: _states(_FULL),
        all_bytes=lambda: 2 * _states(_LORA),
    ),
    "05.2": answers(
        lambda: peak("gpt2", _QLORA) - peak("gpt2", _LORA),
        rest=lambda: step("gpt2", _LORA).phases["rest"] - step("gpt2", _QLORA).phases["rest"],
        full=lambda: peak("gpt2", _FULL) - peak("gpt2", _QLORA),
    ),
    "05.3": answers(
        lambda: peak("gpt2", _FULL) - peak("gpt2", _FULL, optimizer="adamw8bit"),
        lion=lambda: peak("gpt2", _FULL) - peak("gpt2", _FULL, optimizer="lion", optimizer_impl="loop"),
        states=lambda: _states(_FULL.replace(optimizer="adamw8bit")),
    ),
}
