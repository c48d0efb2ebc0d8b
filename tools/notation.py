"""The table of notation, `notebooks/notation.md`, written from the registry of symbols.

python tools/notation.py
"""

import re
from pathlib import Path

from everybyte.formulas.symbols import SYMBOLS, Symbol

PAGE = Path(__file__).resolve().parents[1] / "notebooks" / "notation.md"
#: Letters that a chapter uses for a moment in another sense, as the papers do: chapter -> (letter, meaning there).
LOCAL = {
    "12": (("m, v", "Adam's running means"), ("θ", "a weight")),
    "14": (("C", "tokens in a chunk"), ("T", "tokens in a step, B × S"), ("p", "a probability")),
    "15": (("T", "tokens in a step, B × S"),),
    "18": (("m", "the reference of a row's online softmax"), ("p", "a probability"), ("ℓ", "a row's sum")),
    "20": (
        ("X", "exponent field"),
        ("Y", "mantissa field"),
        ("$q_1$, $q_2$", "elements in a block of a quantized tensor"),
    ),
    "22": (("I", "bytes of a block's input"), ("C", "bytes that a block saves"), ("r", "C over I")),
    "26": (("k", "bytes that a block saves for each element of the hidden states"), ("z", "1 under ZeRO-3")),
    "37": (("m", "micro-batches"), ("a", "activations of all blocks"), ("e", "the loss's bytes")),
    "43": (("C, F, U, A, K", "capacity, free, process, allocated, cached"),),
}
TEXT = """# Notation

One letter has one meaning in every formula of the library; this page is written from its registry by
`python tools/notation.py`. `from everybyte.formulas.symbols import SYMBOLS` has the same in Python.

## Letters

| letter | in code | meaning | unit | whose |
|---|---|---|---|---|
{letters}

## Switches

A word in brackets is 1 where it is so, and 0 where it is not.

| letter | in code | meaning | unit | whose |
|---|---|---|---|---|
{switches}

## Letters of one chapter

Within one derivation a chapter follows the papers, and says so there. Outside of it these letters mean nothing else.

| chapter | letter | meaning there |
|---|---|---|
{local}
"""


def switch(symbol: Symbol) -> bool:
    """Whether it stands for a yes or no, written as a word in brackets."""
    return symbol.unit == "0 or 1"


def row(symbol: Symbol) -> str:
    """One line of a table."""
    letter = str(symbol.symbol)
    letter = re.sub(r"\\text\{([^}]*)\}", r"\1", letter) if switch(symbol) else f"${letter}$"
    whose = {"model": "the model's", "setup": "the setup's", "": ""}[symbol.needs]
    unit = "" if switch(symbol) else symbol.unit
    return f"| {letter} | `{symbol.name}` | {symbol.meaning} | {unit} | {whose} |"


def page() -> str:
    """The whole page."""
    letters, switches = ("\n".join(row(s) for s in SYMBOLS.values() if switch(s) is is_) for is_ in (False, True))
    local = (f"| {chapter} | {letter} | {meaning} |" for chapter, rows in LOCAL.items() for letter, meaning in rows)
    return TEXT.format(letters=letters, switches=switches, local="\n".join(local))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
