"""An error's text as its parts, for programs: every error of the library has one form, and this reads it."""

import ast
import re

#: `field: value why; allowed: what; who answers instead`. A field is a few names; what follows it is the value, where it is a literal.
_FIELD = re.compile(r"((?:argument )?[\w.'\[\]-]+(?: [\w.'\[\]-]+){0,2}): (?:value: )?")
_LITERAL = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w,])|True\b|False\b|None\b"""
)
_KIND = re.compile(r"is not (a (?:whole )?number .*)")


def parts(text: str) -> dict[str, object]:
    """{field, value, why, allowed, instead, text} of an error. What it does not say is None; `value` where it is a number or a word."""
    match = _FIELD.match(text)
    field, rest = (match[1].removeprefix("argument "), text[match.end() :]) if match else (None, text)
    head, marked, after = rest.partition("allowed: ")
    allowed, _, instead = after.partition("; ")
    literal = _LITERAL.match(head)
    why = (head[literal.end() :] if literal else head).strip(" ;:,")
    if not marked and (kind := _KIND.match(why)):
        allowed = kind[1]
    value = ast.literal_eval(literal[0]) if literal else None
    return {
        "field": field,
        "value": value,
        "why": why or None,
        "allowed": allowed or None,
        "instead": instead or None,
        "text": text,
    }
