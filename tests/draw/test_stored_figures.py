"""The pictures in figures/ show the numbers of the code as it is, and all of them are drawn by `make figures`."""

import importlib.util
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("tools_figures", ROOT / "tools/figures.py")
figures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(figures)


def test_the_folder_holds_these_and_no_others():
    assert {p.name for p in (ROOT / "figures").iterdir()} == {f"{name}.png" for name in figures.FIGURES}


@pytest.mark.parametrize("name", figures.FIGURES)
def test_no_picture_is_stale(name):
    with Image.open(ROOT / f"figures/{name}.png") as image:
        assert image.text["Description"] == figures.FIGURES[name]().alt, "run `make figures`"
