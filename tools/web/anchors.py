"""The anchors of headings, as JupyterLab gives them, so that one link serves the notebook and the page."""


def anchor(title: str) -> str:
    return title.replace(" ", "-")
