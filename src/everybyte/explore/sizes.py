"""A size or a number of times that a course says, as a formula for pictures."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace

from ..formulas import symbols
from ..formulas.symbols import BY_SYMBOL
from ..theory.letters import HELPERS

_LETTER, _CALL = re.compile(r"\b[A-Za-z]\w*\b(?!\()"), re.compile(r"\b([a-z]+\()")
_HELPERS = HELPERS | {"down": HELPERS["whole"]}
#: A course's letter -> its name in code.
NAMES = {
    letter: BY_SYMBOL[z].name for letter, z in vars(symbols).items() if getattr(z, "is_Symbol", 0) and z in BY_SYMBOL
}


@dataclass(frozen=True)
class Size:
    """Text in letters, such as a course says, which is evaluated in Python and in the browser.

    Attributes:
        names: letter -> the name of its value; a letter that has none here is itself the name.
    """

    name: str
    text: str
    names: Mapping | None = None

    @cached_property
    def symbols(self):
        """What it needs values of, each with a `name`."""
        names = NAMES if self.names is None else self.names
        found = dict.fromkeys(names.get(letter, letter) for letter in _LETTER.findall(self.text))
        return [SimpleNamespace(name=name) for name in found]

    def _with(self, form):
        names = NAMES if self.names is None else self.names
        return _LETTER.sub(lambda letter: form.format(names.get(letter[0], letter[0])), self.text)

    @cached_property
    def javascript(self):
        """An arrow function of one object with these names as fields; what it calls is the picture's `helpers`."""
        return "(v) => " + _CALL.sub(r"helpers.\1", self._with("v.{}"))

    @cached_property
    def _code(self):
        return compile(self._with("{}"), self.name, "eval")

    def __call__(self, **values):
        """The value from those of the symbols by name."""
        if missing := [s.name for s in self.symbols if s.name not in values]:
            raise ValueError(f"{self.name}: no value for {', '.join(missing)}")
        return eval(self._code, {"__builtins__": {}} | _HELPERS, values)  # noqa: S307  text that a course wrote
