"""What is kept of the reader's answers, and where; what is not; and nothing lost."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everybyte.teach import check, kept, predict, progress
from everybyte.teach.exercise import bank, chapters, exercise

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path / "state" / "progress.json"))
    return tmp_path / "state" / "progress.json"


def _right(id):
    return check(id, exercise(id).answer())


def test_what_is_answered_is_kept_and_nothing_else(file):
    assert "No exercises answered yet" in repr(progress()) and "00.2" in repr(progress())
    check("12.1", ...), check("12.1", "<b>"), check("12.2", "12 parsecs"), predict("12.1", ...), predict("12.1", "?")
    assert not file.parent.exists()
    check("12.2", 1), predict("12.1", "2 GiB"), _right("12.1")
    assert json.loads(file.read_text()) == {"tried": ["12.2"], "predicted": ["12.1"], "solved": ["12.1"]}
    before = file.stat().st_mtime_ns
    check("12.2", 1), predict("12.1", 3), _right("12.1")
    assert file.stat().st_mtime_ns == before
    assert sorted(p.name for p in file.parent.iterdir()) in ([file.name], [file.name, file.name + ".lock"])


def test_the_table_counts_by_chapter_and_says_what_comes_next(file):
    check("12.2", 1), _right("12.1"), predict("P12.1", 1), _right("12.3"), check("12.3", -1)
    shown, rows = progress(), {row[0]: row[1:] for row in progress().table().rows}
    assert rows["chapter 12"] == (f"2 of {len(bank('12'))}", 1, 1, "12.2")
    assert rows["chapter 11"] == (f"0 of {len(bank('11'))}", 0, 0, "11.1")
    assert rows["the book"][:3] == (f"2 of {sum(len(bank(c)) for c in chapters())}", 1, 1)
    assert shown.next is exercise("12.2") and "Next: 12.2" in repr(shown) and "12.2" in shown._repr_html_()
    names = list(rows)
    assert names[0] == "chapter 00" and names.index("lab 01") > names.index("chapter 47") and names[-1] == "the book"
    _right("12.2")
    assert (progress().tried, progress().table().rows[-1][2]) == ({"12.2", "12.3"}, 0)


def test_when_all_is_solved_it_says_so(file):
    file.parent.mkdir()
    file.write_text(json.dumps({"solved": [id for c in chapters() for id in bank(c)] + ["99.9"]}))
    total = sum(len(bank(c)) for c in chapters())
    assert progress().next is None and "All solved." in repr(progress())
    assert progress().table().rows[-1] == ("the book", f"{total} of {total}", 0, 0, "–")


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"null", b'{"solved": 3}', b'{"solved": [1]}', b"\xff\xfe\x00", b"[" * 10**5, b"9" * 10**4],
    ids=lambda t: ascii(t[:12]),
)
def test_a_damaged_file_is_set_aside_kept_and_said(file, text):
    for n in (1, 2):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(text)
        said = progress() if n == 1 else check("12.2", 1)
        assert f"damaged: it is kept as progress.json.damaged-{n}, and a new one begins." in repr(said)
        assert file.with_name(f"progress.json.damaged-{n}").read_bytes() == text
    assert json.loads(file.read_text()) == {"tried": ["12.2"]}
    assert "damaged" not in repr(progress()) and "damaged" not in repr(check("12.2", 1))


@given(text=st.binary(max_size=40) | st.recursive(st.none() | st.text(), st.lists).map(json.dumps).map(str.encode))
@settings(max_examples=50, deadline=None)
def test_no_content_raises_or_is_lost(tmp_path_factory, text):
    file = tmp_path_factory.mktemp("state") / "progress.json"
    file.write_bytes(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(kept.VARIABLE, str(file))
        repr(progress()), repr(check("12.2", 1))
    assert text in {p.read_bytes() for p in file.parent.iterdir()} or set(json.loads(text)) <= set(
        json.loads(file.read_text())
    )


def test_what_a_later_edition_keeps_stays(file):
    file.parent.mkdir()
    file.write_text(json.dumps({"solved": ["88.1"], "starred": ["11.1"]}))
    _right("11.1")
    assert json.loads(file.read_text()) == {"solved": ["11.1", "88.1"], "starred": ["11.1"]}


def test_notebooks_at_once_lose_nothing_of_each_other(file):
    code = "import sys; from everybyte.teach.kept import keep\nfor i in range(30): assert keep('tried', f'{sys.argv[1]}.{i}') == ''"
    ids = ["11", "12", "13"]
    runs = [subprocess.Popen([sys.executable, "-c", code, name]) for name in ids]
    assert [run.wait(60) for run in runs] == [0, 0, 0]
    assert set(json.loads(file.read_text())["tried"]) == {f"{name}.{i}" for name in ids for i in range(30)}


def test_a_write_that_is_cut_short_changes_nothing(file, monkeypatch):
    _right("11.1")
    before = file.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(kept.os, "fsync", full)
        verdict = _right("12.1")
    assert verdict.right and "not kept" in verdict.text and "No space left" in verdict.text
    assert file.read_bytes() == before
    _right("12.1")
    assert progress().solved == {"11.1", "12.1"}


def test_where_it_cannot_be_kept_the_verdict_stands_and_says_so(tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("a file")
    for path in (tmp_path / "taken" / "progress.json", tmp_path):
        monkeypatch.setenv(kept.VARIABLE, str(path))
        assert _right("12.1").right and "not kept" in _right("12.1").text
        assert "not kept" in repr(predict("12.1", 3)) and predict("12.1", 3).value == 3 * 2**30
        assert "could not be read" in repr(progress())
    monkeypatch.setenv(kept.VARIABLE, "here.json")
    assert "EVERYBYTE_PROGRESS: 'here.json' is no whole path" in _right("12.1").text
    assert "no whole path" in repr(progress())


def test_off_is_off_and_the_default_is_the_users_state_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("CI", "true")
    for said in ("off", "OFF ", ""):
        monkeypatch.setenv(kept.VARIABLE, said)
        _right("12.1")
        assert kept.place() is None and "No exercises answered yet" in repr(progress())
    assert not list(tmp_path.iterdir())
    monkeypatch.delenv("CI")
    monkeypatch.delenv(kept.VARIABLE)
    assert kept.place().name == "progress.json" and kept.place().parent.name == "everybyte"
    assert ROOT not in kept.place().parents
    if sys.platform == "linux":
        assert kept.place() == tmp_path / "everybyte" / "progress.json"
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path / "mine.json"))
    assert kept.place() == tmp_path / "mine.json"


def test_without_the_notebooks_packages_nothing_is_kept_and_all_works(tmp_path):
    blocked = "import sys; sys.modules['filelock'] = None\nfrom everybyte.teach import check, progress\nprint(check('12.2', 1), progress())"
    env = {**os.environ, kept.VARIABLE: str(tmp_path / "progress.json")}
    said = subprocess.run([sys.executable, "-c", blocked], env=env, capture_output=True, text=True, check=True).stdout
    assert "too small" in said and "No exercises answered yet" in said and not list(tmp_path.iterdir())


def test_these_tests_and_the_tools_keep_nothing():
    assert os.environ[kept.VARIABLE] == kept.OFF and kept.place() is None
    import notebooks

    os.environ.pop(kept.VARIABLE)
    try:
        with pytest.raises(RuntimeError):
            notebooks.run(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")]), ROOT / "x.ipynb")
        assert os.environ[kept.VARIABLE] == kept.OFF
    finally:
        os.environ[kept.VARIABLE] = kept.OFF


@pytest.mark.parametrize("said", ["", "~nosuchuser/x", "~/x"])
def test_without_a_home_it_is_said_and_nothing_raises(monkeypatch, tmp_path, said):
    """HOME unset, for a user whom the system does not know: as in a container started with a number for a user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOME", raising=False)
    for name in ("CI", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    monkeypatch.setenv(kept.VARIABLE, said)
    assert "EVERYBYTE_PROGRESS" in _right("12.1").text and predict("12.1", 1)
    assert "EVERYBYTE_PROGRESS" in progress().trouble and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["/dev/full", "/dev/zero", "/dev/null", "folder", "pipe"])
def test_what_is_no_file_is_neither_read_nor_moved(monkeypatch, tmp_path, path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / path
    monkeypatch.setenv(kept.VARIABLE, str(path))
    assert "is no file" in _right("12.1").text and "is no file" in progress().trouble and path.exists()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_is_no_list_of_ids_by_its_size_is_set_aside(file):
    file.parent.mkdir()
    with file.open("wb") as whole:
        whole.truncate(2**40)  # nothing is on the disk, and nothing is read
    assert "damaged" in progress().trouble and not file.exists()


@pytest.mark.parametrize("fails", ["EACCES", "EROFS", "ENOSPC"])
def test_a_home_that_cannot_be_written_is_said(file, monkeypatch, fails):
    def refuse(*_, **__):
        raise OSError(getattr(errno, fails), os.strerror(getattr(errno, fails)))

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert _right("12.1").right and "was not kept" in _right("12.1").text and not file.exists()


def test_a_disk_that_is_full_while_it_writes_leaves_what_was_there(file, monkeypatch):
    _right("12.1")
    before = file.read_bytes()

    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in _right("12.3").text and file.read_bytes() == before
