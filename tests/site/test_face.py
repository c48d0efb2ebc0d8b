"""The edition's face: its typefaces and their license, each part's hue, its sign."""

import re
import xml.etree.ElementTree as tree
from io import BytesIO

import edition
import face
import lite
import pytest
import typeface

import everybyte as eb
from everybyte.draw.palette import CARD, INK, PARTS, contrast

GROUNDS = [face.LIGHT, face.DARK]


def test_the_typefaces_are_shipped_with_their_license_under_a_name_of_their_own():
    from fontTools.ttLib import TTFont

    fonts = sorted(typeface.FONTS.iterdir())
    assert {path.name for path in fonts} == {"OFL.txt", *(name for name, *_ in typeface.FACES.values())}
    license = (typeface.FONTS / "OFL.txt").read_text(encoding="utf-8")
    assert "SIL OPEN FONT LICENSE Version 1.1" in license and "Reserved Font Name 'Source'" in license
    assert "OFL.txt" in (edition.ROOT / "README.md").read_text(encoding="utf-8")
    assert sum(path.stat().st_size for path in fonts) < 150_000
    for name, family, style in typeface.FACES.values():
        names = {one.nameID: one.toUnicode() for one in TTFont(typeface.FONTS / name)["name"].names}
        assert (names[1], names[2]) == (family, style) and "Open Font License" in names[13]
        assert all("Source" not in names.get(number, "") for number in (1, 3, 4, 6, 16))  # reserved by the license


def test_the_text_face_has_the_signs_of_the_book():
    from fontTools.ttLib import TTFont

    has = (
        TTFont(typeface.FONTS / "serif.woff").getBestCmap().keys()
        & TTFont(typeface.FONTS / "sans.woff").getBestCmap().keys()
    )
    assert not [sign for sign in "×÷−±≤≥≈→√²³·•…–“”’ΣΠαβερθµäöüéñ0123456789" if ord(sign) not in has]
    assert not [sign for sign in typeface.CHARACTERS if ord(sign) not in has]
    texts = [path.read_text(encoding="utf-8") for path in (edition.ROOT / "notebooks").glob("*.md")]
    texts += [(edition.ROOT / "README.md").read_text(encoding="utf-8")]
    assert {sign for text in texts for sign in re.sub(r"```.*?```", "", text, flags=re.S) if ord(sign) not in has} <= {
        "\n"
    }


def test_a_subset_is_cut_from_a_face_as_it_says(tmp_path):
    from fontTools.ttLib import TTFont
    from matplotlib import get_data_path

    source = f"{get_data_path()}/fonts/ttf/DejaVuSans.ttf"
    typeface.cut(source, tmp_path / "x.woff", "Every Byte Sans", "Bold")
    made = TTFont(BytesIO((tmp_path / "x.woff").read_bytes()))
    assert set(made.getBestCmap()) <= {ord(sign) for sign in typeface.CHARACTERS}
    assert made["name"].getDebugName(4) == "Every Byte Sans Bold" and made.flavor == "woff"


def test_the_style_has_every_typeface_in_it_and_asks_for_nothing():
    style = face.fonts()
    assert style.count("@font-face") == style.count("font-display: swap") == len(typeface.FACES) == 5
    assert re.findall(r"url\((?!\"data:font/woff;base64,)", style) == [] and "@import" not in style
    assert style.count("sans-serif;") == 1 and "Georgia, serif;" in style  # where none can be read


@pytest.mark.parametrize("ground", GROUNDS, ids=["light", "dark"])
def test_a_part_s_bar_is_seen_on_the_page_and_beside_it(ground):
    found = {name: face.shade(face.PALETTE[hue], ground) for name, hue in face.PARTS.items()}
    assert len(set(found.values())) == len(face.PARTS)
    for color in found.values():
        assert min(contrast(color, ground.page), contrast(color, ground.beside)) >= 3
    assert contrast(ground.ink, ground.page) > 12 and contrast(ground.quiet, ground.beside) > 4.5
    link = face.shade(face.PALETTE["blue"], ground, face.WORDS)
    assert min(contrast(link, ground.page), contrast(link, ground.beside)) >= 4.5


def test_hues_and_grounds_are_the_palette_s(monkeypatch):
    assert face.shade(face.PALETTE["blue"], face.LIGHT) == face.PALETTE["blue"].lower()  # it can be seen as it is
    assert (face.LIGHT.page, face.LIGHT.ink, face.DARK.page) == (CARD, INK, INK)
    monkeypatch.setitem(face.PALETTE, "green", "#123456")
    assert "--everybyte-hue-green: #123456;" in face.style()
    for name in ("site.css", "slides.css", "explorers.css"):
        text = (edition.WEB / "static" / name).read_text(encoding="utf-8").lower()
        assert not [hue for hue in face.PALETTE.values() if hue.lower() in text], name


def test_each_part_of_the_map_has_its_hue_in_the_sidebar_and_on_the_cards():
    parts = list(dict.fromkeys(entry.part or "Start" for entry in edition.written()))
    assert [face.part(name) for name in parts] == list(face.PARTS)
    rules = face.style([*parts, "Reference"]).splitlines()
    for place, name in enumerate(parts, 1):
        (rule,) = [line for line in rules if f".sidebar-tree p.caption:nth-of-type({place})," in line]
        assert rule.endswith(f"{{ --everybyte-part: var(--everybyte-hue-{face.PARTS[face.part(name)]}); }}")
        assert f"body:has(.sidebar-tree p.caption:nth-of-type({place}) + ul > li.current)" in rule
        assert all(f'[{kind}="{face.slug(name)}"]' in rule for kind in ("data-part", "data-page-part"))
        assert f'data-page-part="{face.slug(name)}"' in face.marker(name)
    text = edition.home.page(edition.written(), edition.ROOT)
    assert re.findall(r"everybyte-cards' data-part='([^']+)'", text) == [face.slug(name) for name in parts]
    assert '<svg class="everybyte-sign"' in text


def test_the_sign_is_a_step_s_numbers(monkeypatch):
    model = eb.model("gpt2")
    budget = eb.budget(model, eb.Setup(batch=8, sequence=1024, precision="bf16-mixed"))
    steps = face.stairs()
    heights = [sum(one.values()) for one in steps]
    assert len(steps) == 2 * model.layers + 4  # rest, blocks, the peak, blocks, the optimizer's step, rest
    assert max(heights) == heights[model.layers + 1] == budget.peak
    assert heights[0] == heights[-1] == budget.phases["rest"]
    climb, descent = heights[: model.layers + 1], heights[model.layers + 1 : -2]
    assert climb == sorted(climb) and descent == sorted(descent, reverse=True)
    counted = [name for names, _ in face.LAYERS for name in names]
    assert all(sum(one[name] for name in counted) == sum(one.values()) for one in steps)  # no byte is left out
    for names, hue in face.LAYERS:
        assert {PARTS[name].color for name in names} - {PARTS["buffers"].color} == {face.PALETTE[hue]}
    paths = tree.fromstring(face.sign())
    assert len(paths) == len(face.LAYERS)
    top = [float(y) for y in re.findall(r"V([\d.e-]+)h(?!-)", paths[-1].get("d"))]
    assert [face.HIGH - y for y in top] == pytest.approx([face.HIGH * x / budget.peak for x in heights], abs=0.01)
    monkeypatch.setattr(
        face,
        "eb",
        type(
            "Other", (), {"model": eb.model, "Setup": lambda **_: eb.Setup(batch=1, sequence=16), "budget": eb.budget}
        ),
    )
    with pytest.raises(ValueError, match="allowed: the loss"):
        face.stairs()


def test_jupyterlite_has_the_same_typefaces(tmp_path):
    for name in ("index.html", "lab/index.html"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("<html><head><title>x</title></head></html>")
    lite.faced(tmp_path)
    assert '<link rel="stylesheet" href="../static/fonts.css">' in (tmp_path / "lab" / "index.html").read_text()
    assert "--jp-content-font-family" in (tmp_path / "static" / "fonts.css").read_text()
    assert list(edition.faults(tmp_path)) == []
