"""What a lab ends in: the reader's own record where there is one, else the book's, and which of the two is said."""

from dataclasses import replace
from pathlib import Path

import pytest

import everybyte as eb
from everybyte import lab
from everybyte.lab.records import append
from everybyte.lab.several import BOOK, NOT_YET, NOW, OWN, QUOTED

FOLDER = Path(__file__).resolve().parents[2] / "labs" / "records"
STEPS = {"bf16": eb.Setup(precision="bf16"), "fp32": eb.Setup()}


@pytest.fixture(autouse=True)
def record_only(monkeypatch):
    monkeypatch.setenv("EVERYBYTE_RECORD_ONLY", "1")


def asked(records=FOLDER, **options):
    return lab.runs(eb.model("gpt2"), STEPS, records=records, **options)


def test_the_book_s_record_is_quoted_where_the_reader_has_none():
    table = lab.conclusion(asked(), records=FOLDER)
    assert table.caption == f"{QUOTED}: NVIDIA H200, 2026-11-26"
    assert table.rows == [["bf16", "5.37 GiB", "5.72 GiB", "33.4"], ["fp32", "10.61 GiB", "11.25 GiB", "159.8"]]


def test_the_reader_s_own_record_comes_first(tmp_path):
    book = asked()
    mine = replace(book.found["bf16"], device=book.found["bf16"].device | {"name": "mine"}, step_ms=50.0)
    for name, m in (("mine", mine), (BOOK.removesuffix(".jsonl"), book.found["bf16"]), (BOOK[:-6], book.found["fp32"])):
        append(tmp_path / f"{name}.jsonl", m)
    table = lab.conclusion(asked(tmp_path), records=tmp_path)
    assert table.caption == f"{OWN}: mine, 2026-11-26" and [row[-1] for row in table.rows] == ["50.0"]
    tf32 = lab.conclusion(asked(tf32=True), records=tmp_path)  # of another switch the reader has none
    assert tf32.caption.startswith(QUOTED) and [row[0] for row in tf32.rows] == ["fp32"]


def test_what_was_measured_just_now_is_the_reader_s():
    table = lab.conclusion(replace(asked(), live=True), records=FOLDER)
    assert table.caption.startswith(NOW) and len(table.rows) == 2


def test_without_a_record_it_says_so(tmp_path):
    assert lab.conclusion(asked(tmp_path), records=tmp_path).caption == NOT_YET
