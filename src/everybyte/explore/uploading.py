"""A reader's own snapshot, put into the notebook: what held the memory at its peak, and its segments over the history."""

from html import escape

import ipywidgets as widgets

from ..evidence import snapshot
from .segments import memory_map

_SAID = (
    "A memory snapshot of your own: press the button and choose the file. It is read here, and nothing in it is run."
)


class Upload(widgets.VBox):
    """A button for a file, and below it the table of its peak and the map of its segments, or why it was refused.

    A notebook's server takes files up to some 10 MB this way; of larger ones `eb.snapshot(path)` reads up to 500 MB.
    """

    def __init__(self):
        self.button = widgets.FileUpload(accept=".pickle,.pkl", multiple=False, description="snapshot")
        self.said = widgets.HTML(f"<p>{escape(_SAID)}</p>")
        super().__init__([self.button, self.said])
        self.add_class("everybyte-upload")
        self.button.observe(self._given, "value")

    def _given(self, change):
        if not change["new"]:
            return
        (file,) = change["new"]
        try:
            memory = snapshot(bytes(file["content"])).main
            self.said.value = f"<p>{escape(str(file['name']))}</p>{memory._repr_html_()}"
            self.children = [self.button, self.said, memory_map(memory)]
        except ValueError as error:
            self.said.value = f'<p role="alert">{escape(str(error))}</p>'
            self.children = [self.button, self.said]

    def _repr_mimebundle_(self, **kwargs):
        shown = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        return {"text/plain": _SAID, "application/vnd.jupyter.widget-view+json": shown}, {}


def upload() -> Upload:
    """A button that takes a snapshot of your own, and shows it."""
    return Upload()
