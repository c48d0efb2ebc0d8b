"""The reference's source, as a chapter shows it."""

import inspect

import pytest

from everybyte.reference import gpt
from everybyte.reference.hugging_face import decoders
from everybyte.teach import source


def test_what_is_shown_is_the_source_itself():
    shown = source("gpt", "Attention.forward", "through").data
    assert shown.startswith("```python\n# reference/gpt.py\ndef forward(self, x):")
    assert inspect.getsource(gpt.through).rstrip() in shown
    assert inspect.getsource(decoders.LlamaBlock).rstrip() in source("hugging_face.decoders", "LlamaBlock").data


def test_what_is_not_there_is_refused_by_name():
    with pytest.raises(ValueError, match="source.file: 'gptt' is unknown; .*'gpt'|source.file: 'gptt'"):
        source("gptt")
    with pytest.raises(ValueError, match="source.names: 'Attention.forwards'"):
        source("gpt", "Attention.forwards")
