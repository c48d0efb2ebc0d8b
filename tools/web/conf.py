"""Sphinx's settings for the static edition; tools/site.py prepares the sources and calls it."""

import importlib.metadata
import tomllib
from pathlib import Path

import face

ROOT = Path(__file__).resolve().parents[2]
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "Every Byte"
author = _PROJECT["authors"][0]["name"]
version = release = importlib.metadata.version("everybyte")
copyright = f"{author}; text and figures CC BY 4.0, code MIT"
language = "en"
needs_sphinx = "8.2"

extensions = ["myst_nb"]
nb_execution_mode = "off"  # the notebooks come here run
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
nb_ipywidgets_js = {
    path: {"defer": "defer"} for path in ("modules.js", "vendor/controls.js", "vendor/anywidget.js", "widgets.js")
}
myst_enable_extensions = ["amsmath", "deflist", "dollarmath", "html_image"]
myst_heading_anchors = 4
myst_heading_slug_func = "anchors.anchor"
myst_links_external_new_tab = False
nitpicky = True

html_theme = "furo"
html_title = "Every Byte"
html_static_path = ["static"]
html_css_files = ["fonts.css", "face.css", "explorers.css", "site.css"]
html_context = {"everybyte_sign": face.sign()}
templates_path = ["templates"]
html_js_files = [
    ("page.js", {"priority": 300}),
    ("vendor/keeping.js", {"priority": 300}),
    ("paths.js", {"priority": 300}),
]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
mathjax_path = "vendor/mathjax/tex-chtml.js"
mathjax3_config = {
    "tex": {"inlineMath": [["\\(", "\\)"]], "displayMath": [["\\[", "\\]"]]},
    "options": {"processHtmlClass": "tex2jax_process|mathjax_process|math|output_area", "enableMenu": False},
}

if tags.has("revealjs"):  # noqa: F821  Sphinx gives the tags
    extensions.append("sphinx_revealjs")
    _KINDS = ("text/html", "text/markdown", "text/latex", "text/plain")
    nb_mime_priority_overrides = [("revealjs", kind, place) for place, kind in enumerate(_KINDS)]
    revealjs_style_theme = "white"
    revealjs_css_files = ["fonts.css", "face.css", "explorers.css", "slides.css"]
    revealjs_js_files = ["slides.js"]
    revealjs_script_conf = {
        "width": 1280, "height": 720, "margin": 0, "center": False, "hash": True, "slideNumber": "c/t", "navigationMode": "linear", "transition": "none",
    }  # fmt: skip
    revealjs_script_plugins = [{"src": "revealjs/plugin/notes/notes.js", "name": "RevealNotes"}]
    mathjax3_config["chtml"] = {"matchFontHeight": False}  # a slide not shown yet has no height
