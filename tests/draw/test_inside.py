"""What stands inside a block: counted in squares, and by what each operation saves."""

import pytest

import everybyte as eb
from everybyte import draw


def test_a_block_of_gpt_2_is_twelve_squares_and_one_of_llama_3_2_1b_fourteen_and_a_half():
    said = draw.squares([eb.model("gpt2"), eb.model("llama-3.2-1b")]).alt
    assert "gpt2, H = 768: qkv 3, out 1, up 4, down 4, in all 12" in said
    assert "q 1, k 0.25, v 0.25, out 1, gate 4, up 4, down 4, in all 14.5" in said


def test_a_mixture_is_not_drawn_in_squares():
    with pytest.raises(ValueError, match=r"experts of mixtral-8x7b: 8"):
        draw.squares([eb.model("mixtral-8x7b")])


def test_what_saves_nothing_is_said_and_what_saves_is_summed():
    said = draw.saves([("norm", [("input", 4), ("result", 2)]), ("add", [])], "a branch").alt
    assert said.endswith("norm: input 4 B, result 2 B; add: nothing; in all 6 B.")
    with pytest.raises(ValueError, match="save nothing"):
        draw.saves([("add", [])])
