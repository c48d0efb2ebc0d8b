"""A place for what is the reader's own: a model's config.json, a memory snapshot, the text of an error. It is read here, and goes nowhere."""

from html import escape

import ipywidgets as widgets

from ..answers.diagnosis import doctor
from ..answers.fit import fit
from ..ask.choices import PRECISIONS
from ..ask.setup import Setup
from ..catalog import from_config
from ..common import checks, files
from ..evidence import snapshot
from ..evidence.pickles import is_pickle
from ..theory.budget import budget
from .controls import cards, powers
from .segments import memory_map

_SAID = (
    "Something of your own: a model's config.json, a memory snapshot, or a file with the error of a job that died. Press the button and "
    "choose it, or paste a text below. It is read here, nothing in it is run, and it goes nowhere."
)
#: The most letters of a text; an error with its traceback has some thousands.
_MOST = 2**20


class Fitting(widgets.VBox):
    """What fits of a model on a GPU, as its controls stand: the largest batch, and the parts of its peak."""

    def __init__(self, model):
        self.model = model
        longest = min(2048, model.positions or 2048)
        precisions = [name for name in PRECISIONS if name != "fp16-mixed"]
        self.gpu = widgets.Dropdown(options=list(cards()), value="h100-80gb", description="GPU")
        self.gpus = widgets.Dropdown(options=powers(0, 10), value=1, description="GPUs")
        self.precision = widgets.Dropdown(options=precisions, value="bf16", description="precision")
        self.sequence = widgets.BoundedIntText(
            value=longest, min=1, max=model.positions or 2**20, description="sequence"
        )
        self.recompute = widgets.Checkbox(value=False, description="checkpointing")
        self.answer = widgets.HTML()
        controls = [self.gpu, self.gpus, self.precision, self.sequence, self.recompute]
        super().__init__([widgets.Box(controls, layout={"flex_flow": "row wrap"}), self.answer])
        for control in controls:
            control.observe(self._asked, "value")
        self._asked()

    def _asked(self, change=None):
        gpus, again = self.gpus.value, "full" if self.recompute.value else "none"
        asked = {"sequence": self.sequence.value, "precision": self.precision.value, "checkpointing": again}
        try:
            setup = Setup(**self.model.own | asked | ({"gpus": gpus, "sharding": "zero3"} if gpus > 1 else {}))
            found = fit(self.model, setup, self.gpu.value)
            parts = budget(self.model, found.setup)._repr_html_() if found.fits else ""
            self.answer.value = found._repr_html_() + parts
        except ValueError as error:
            self.answer.value = _refused(error)


def _refused(error) -> str:
    return f'<p role="alert">{escape(str(error))}</p>'


class Yours(widgets.VBox):
    """A button that takes a file, and a field for a text. Below them appears what was found in it, or why it was refused.

    A config.json is a model: what fits, by controls. A snapshot: the table of its peak, and the map of its segments. Another text: what
    the error says, and what helps. A notebook's server accepts files of up to about 10 MB this way; `eb.snapshot(path)` reads up to 500 MB.
    """

    def __init__(self):
        self.button = widgets.FileUpload(
            accept=".json,.pickle,.pkl,.txt,.log,.out,.err", multiple=False, description="a file"
        )
        self.text = widgets.Textarea(
            placeholder="or paste here: an error, or a config.json", layout={"width": "auto", "height": "6em"}
        )
        self.said = widgets.HTML(f"<p>{escape(_SAID)}</p>")
        self._always = [self.button, self.text, self.said]
        super().__init__(self._always)
        self.add_class("everybyte-yours")
        self.button.observe(self._given, "value")
        self.text.observe(self._pasted, "value")

    def _given(self, change):
        if change["new"]:
            (file,) = change["new"]
            self._take(bytes(file["content"]), str(file["name"]))

    def _pasted(self, change):
        if change["new"].strip():
            self._take(change["new"].encode(errors="replace"))

    def _take(self, data, name=""):
        more = []
        try:
            if is_pickle(data):
                memory = snapshot(data).main
                said, more = memory._repr_html_(), [memory_map(memory)]
            elif len(data) > _MOST:
                raise ValueError(f"{len(data):,} bytes of text; allowed: {_MOST:,}")
            elif data.lstrip().startswith(b"{"):
                model = from_config(files.parsed(data), checks.printable(name.removesuffix(".json"), 60))
                said, more = f"<p>{model.parameters:,} parameters</p>", [Fitting(model)]
            else:
                said = doctor(data.decode(errors="replace"))._repr_html_()
        except ValueError as error:
            said = _refused(error)
        self.said.value = (f"<p>{escape(name)}</p>" if name else "") + said
        self.children = [*self._always, *more]

    def _repr_mimebundle_(self, **kwargs):
        shown = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        return {"text/plain": _SAID, "application/vnd.jupyter.widget-view+json": shown}, {}


def yours() -> Yours:
    """A place for a config.json, a memory snapshot or an error of your own; it says what is in it."""
    return Yours()
