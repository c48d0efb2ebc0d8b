"""Exercises of chapter 52: images and text."""

from math import floor, sqrt
from random import Random

from . import Case, answers, formula, program

#: The tower of Qwen3-VL 8B.
TOWER = {
    "tower_layers": 27, "tower_width": 1152, "tower_heads": 16, "tower_ffn_width": 4304, "tower_taps": 3, "patch_side": 16,
    "patch_frames": 2, "pictures": 1,
}  # fmt: skip


def photo(height=3024, width=4032, side=32, merged=1, up=0):
    return ((round(height / side) + up) * round(width / side)) * merged


def kept(merged=4, layers=27):
    """Bytes that the tower saves for the photo."""
    return formula("tower.saved")(**TOWER | {"patches": photo() * merged, "tower_layers": layers})


def windows(height=500, width=800, side=28, across=4, floor=False):
    sides = (round(n / side) for n in (height, width))
    rows, columns = (n // across if floor else -(-n // across) for n in sides)
    return rows * columns


def resized(height, width, side, most, *, up=False, least=True):
    """Tokens of a picture, as `smart_resize` of transformers makes them."""
    rows, columns = round(height / side), round(width / side)
    if rows * columns * side**2 > most:
        shrink, fitted = sqrt(height * width / most), round if up else floor
        rows, columns = (max(int(least), fitted(n / shrink / side)) for n in (height, width))
    return rows * columns


def pictures():
    draw = Random(52)
    for number in range(12):
        height, width, side = draw.randrange(300, 5000), draw.randrange(300, 5000), draw.choice([28, 32])
        most = draw.randrange(200, 3000) * side**2
        yield Case(f"picture {number}", (height, width, side, most), resized(height, width, side, most))
    yield Case("a thin one", (60, 8000, 28, 100 * 784), resized(60, 8000, 28, 100 * 784))


ANSWERS = {
    "52.1": answers(photo, merged=4, side=28, up=1),
    "52.2": answers(kept, merged=1, layers=1),
    "52.3": answers(windows(), patches=windows(side=14), floor=windows(floor=True)),
    "52.4": program(resized, pictures, up=True, least=False),
}
