"""An explorer: ipywidgets controls, linked in the browser to a picture that evaluates the formulas itself.

The controls are jslinked to the picture's traits, so an explorer that is shown needs no kernel. The picture's program is one
JavaScript module: the files of `PROGRAM`, with the formulas printed into it.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Self

import anywidget
import ipywidgets as widgets
import traitlets

from .. import draw
from ..common import checks
from ..formulas import SYMBOLS
from .beside import program, read, said
from .pictures import looks, quantity

#: The files that are the picture's program, one after another, behind `picture.js`.
PROGRAM = ("paint.js", "bars.js", "curves.js", "times.js", "spots.js", "touch.js", "held.js", "drawer.js", "page.js")
#: So many controls stand beside a picture at most; the others are in its drawer.
FIRST = 3
#: Stands before the label of the chosen bar or row.
POINTER = "\N{BLACK RIGHT-POINTING TRIANGLE} "


class Picture(anywidget.AnyWidget):
    """The part of an explorer that draws. Its traits `c_<name>` are the controls' states; `spec` is fixed."""

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    spec = traitlets.Dict().tag(sync=True)
    preset = traitlets.Int(None, allow_none=True).tag(sync=True)

    def __init__(self, source, spec, state):
        self.add_traits(**{f"c_{name}": traitlets.Any(value).tag(sync=True) for name, value in state.items()})
        super().__init__(_esm=source, _css=read("picture.css"), spec=spec, preset=0)


class Explorer(widgets.VBox):
    """Controls around a picture. It is live in a notebook, and a matplotlib figure on a code host and on paper.

    Args:
        title: above the picture.
        controls: `Slider`s and `Choice`s; a later one overrides an earlier one's value of the same symbol.
        picture: a kind of picture from `pictures`.
        presets: {label: {control: value or option label}}. "Reset", the opening state, is put before them.
        base: values of symbols that no control gives. derived: [(symbol's name, quantity)], computed in this order.
        subject: the names of the controls whose values open the sentence; by default all choices.
        also: the names of derived symbols whose values follow there.
        name: of the function of `explore` that opens it, for the call and the address that a reader can copy.
        first: the names of the at most three controls that stand beside the picture, in the order of `controls`; the others are in
            its drawer. By default the first three.

    Raises:
        ValueError: a preset of an unknown control or value, a symbol without a value, a first control that is none or one too many.
    """

    def __init__(
        self,
        title: str,
        controls: Sequence,
        picture,
        presets: Mapping[str, Mapping] | None = None,
        base: Mapping[str, object] | None = None,
        derived: Sequence[tuple] = (),
        subject: Sequence[str] | None = None,
        also: Sequence[str] = (),
        name: str = "",
        first: Sequence[str] | None = None,
    ):
        self.title, self.kind, self._name = title, picture, name
        self._controls = {c.name: c for c in controls}
        self._base, self._derived, self._also = dict(base or {}), list(derived), list(also)
        self._subject = [c.name for c in controls if c.trait == "index"] if subject is None else list(subject)
        self._first = self._checked_first(list(self._controls)[:FIRST] if first is None else list(first))
        self._inputs = {c.name: c.widget() for c in controls}
        self.presets = {"Reset": self.state} | {label: self._preset(said) for label, said in (presets or {}).items()}
        quantities = [quantity(q) for q in (*picture.quantities(), *(q for _, q in self._derived))]
        for q in quantities:
            q(**self.values())  # a symbol without a value is found here, not in the browser
        self.source = program({q.name: q.javascript for q in quantities}, *PROGRAM)
        self.picture = Picture(self.source, self._spec(quantities), self.state)
        buttons = widgets.ToggleButtons(options=list(self.presets), index=0, style={"button_width": "auto"})
        self._links = [
            widgets.jslink((self._inputs[name], c.trait), (self.picture, f"c_{name}"))
            for name, c in self._controls.items()
        ]
        self._links.append(widgets.jslink((buttons, "index"), (self.picture, "preset")))
        inputs = widgets.Box([self._inputs[c.name] for c in self.ordered()], layout={"flex_flow": "row wrap"})
        super().__init__([buttons, inputs, self.picture])
        self.add_class("everybyte-explorer")

    def _checked_first(self, names):
        for name in names:
            checks.one_of("explorer", "first", name, self._controls)
        if len(names) > FIRST:
            raise ValueError(f"explorer.first: {len(names)} controls; allowed: at most {FIRST}")
        return names

    def ordered(self) -> list:
        """The controls as they stand in the page: the first ones, then those of the drawer."""
        return sorted(self._controls.values(), key=lambda c: c.name not in self._first)

    def _hidden(self, asked=False):
        """{control in the drawer that the picture does not mark: its usual state}; None where the caller `asked` for what it shows."""
        here, seen = self.state, (*self._first, *self.kind.marked())
        return {name: c.usual(here[name], asked) for name, c in self._controls.items() if name not in seen}

    def _preset(self, chosen, owner="preset"):
        state = {}
        for name, value in chosen.items():
            if name not in self._controls:
                raise ValueError(f"{owner}: {name!r} is not a control; allowed: {', '.join(self._controls)}")
            control = self._controls[name]
            now = control.state(value, owner)
            state |= {**control.moves(now), name: now}
        return state

    def _spec(self, quantities):
        courses = getattr(self.kind, "courses", None)
        needed = {s.name for q in quantities for s in q.symbols} | {"capacity", "segment"}
        needed |= {*courses.by, *courses.update_by} if courses else set()

        def used(values):  # and what is not of the notation, which the picture asks for itself
            return {name: value for name, value in values.items() if name in needed or name not in SYMBOLS}

        controls = [c.spec() for c in self._controls.values()]
        for c in controls:
            for option in c.get("options", ()):
                option["values"] = used(option["values"])
        return {
            "kind": self.kind.kind, "name": self._name, "title": self.title, "controls": controls,
            "base": used(self._base),
            "derived": [[name, quantity(q).name] for name, q in self._derived], "subject": self._subject, "also": self._also,
            "first": self._first, "hidden": self._hidden(),
            "presets": [{"label": label, "state": state} for label, state in self.presets.items()], "looks": looks(),
        } | self.kind.spec()  # fmt: skip

    @property
    def state(self) -> dict:
        """The controls' states by name: a slider's value, a choice's index."""
        return {name: getattr(self._inputs[name], c.trait) for name, c in self._controls.items()}

    def at(self, **chosen) -> Self:
        """Move controls, and give the explorer: `explore.step().at(batch="8", place=0)`.

        Args:
            chosen: by a control's name a slider's value, or the label of a choice's option.

        Raises:
            ValueError: for a control or a state that it does not have.
        """
        for name, state in self._preset(chosen, "explorer.at").items():
            setattr(self._inputs[name], self._controls[name].trait, state)
        return self.asked()

    def asked(self) -> Self:
        """The explorer, as one whose caller chose what it shows: it does not open on the reader's own run."""
        self.picture.spec = self.picture.spec | {"asked": True, "hidden": self._hidden(asked=True)}
        return self

    def _at(self, state):
        """The given state, checked; for None the one that is shown."""
        if state is None:
            return self.state
        checks.kind("explorer", "state", state, Mapping)
        for name, control in self._controls.items():
            control.check("explorer.state", state.get(name))
        return state

    def values(self, state: Mapping | None = None, **more) -> dict:
        """The symbols' values, by name in code, at a state; by default the one shown. `more` overrides the controls.

        Raises:
            ValueError: for a state that a control does not have.
        """
        state = self._at(state)
        values = dict(self._base)
        for name, control in self._controls.items():
            values |= control.values(state[name])
        values |= more
        for name, q in self._derived:
            values[name] = quantity(q)(**values)
        return values

    def _subject_at(self, state):
        controls = self._controls
        labels = {name: controls[name].said(state[name]) for name in controls}
        named = [name for name in controls if name in self._subject and not labels[name].startswith("(")]
        instead = {controls[name].instead_of for name in named}
        said = []
        for name in named:
            if name not in instead:
                before = "" if controls[name].trait == "index" else f"{controls[name].label} "
                sets = controls[name].moves(state[name])
                moved = [f"{c.label} {labels[n]}" for n, c in controls.items() if n in sets and state[n] != sets[n]]
                said.append(before + labels[name] + (f" with {' and '.join(moved)}" if moved else ""))
        values = self.values(state) if self._also else {}
        return ", ".join(said + [f"{name} {values[name]:,}" for name in self._also])

    def describe(self, state: Mapping | None = None) -> str:
        """The sentence that the picture shows at a state."""
        state = self._at(state)
        return self.kind.describe(self._subject_at(state), self.values(state))

    def figure(self, state: Mapping | None = None):
        """matplotlib's figure of a state, for paper; it carries `alt`."""
        state = self._at(state)
        subject, bars = self._subject_at(state), self.kind.bars
        variants = {subject: self.values(state)}
        if bars:
            options = enumerate(self._controls[bars].options.items())
            variants = {POINTER * (i == state[bars]) + label: self.values(state, **v) for i, (label, v) in options}
        return self.kind.figure(self.title, subject, self.values(state), variants)

    def table(self, state: Mapping | None = None):
        """A `Table` of a state's numbers."""
        state = self._at(state)
        subject = ", ".join(filter(None, (self.title, self._subject_at(state))))
        return self.kind.table(subject, self.values(state))

    def _repr_mimebundle_(self, **kwargs):
        data, metadata = {}, {}
        if find_spec("matplotlib"):  # without it there is no picture for paper; the live one needs none
            fig = self.figure()
            data, metadata = draw.bundle(fig, fig.alt)
        shown = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        return data | {"text/plain": self.describe(), "application/vnd.jupyter.widget-view+json": shown}, metadata


def told(name: str, controls: Sequence, picture, /, usual: Mapping | None = None, **more) -> Explorer:
    """The explorer whose title, presets and subject stand in explorers.toml under this name.

    Args:
        usual: values of controls that all presets share. more: arguments of `Explorer` beside or in place of those there.
    """
    words = said(name)
    usual = {**(usual or {}), **words.get("usual", {})}
    presets = {label: usual | changes for label, changes in words.get("presets", {}).items()}
    given = {each: words[each] for each in ("base", "subject", "also", "first") if each in words}
    return Explorer(words["title"], controls, picture, **{"presets": presets, "name": name} | given | more)
