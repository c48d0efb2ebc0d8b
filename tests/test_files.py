"""Files: written whole by many at once, with the mode that they had; read from outside within bounds, and without waiting."""

import io
import json
import os
import stat
import sys
import threading

import pytest

from everybyte.common import files

NO_FILE = {"NUL": "a\x00b", "half a surrogate": "\ud800"}
unix = pytest.mark.skipif(sys.platform == "win32", reason="modes and pipes of Unix")


def test_many_threads_write_one_file(tmp_path):
    """Each its own, at the same moment: one of them stands in the end, whole."""
    path, wrong, together = tmp_path / "a", [], threading.Barrier(8)

    def write(number):
        try:
            for _ in range(20):
                with files.whole(path) as file:
                    together.wait(timeout=10)
                    file.write(bytes([number]) * 1000)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(set(path.read_bytes())) == 1 and path.stat().st_size == 1000
    assert os.listdir(tmp_path) == ["a"]


@unix
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o755])
def test_the_mode_stays(tmp_path, mode):
    path = tmp_path / "a"
    path.write_bytes(b"before")
    path.chmod(mode)
    with files.whole(path) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == mode  # from the first byte on
        file.write(b"after")
    assert stat.S_IMODE(path.stat().st_mode) == mode and path.read_bytes() == b"after"


@unix
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_mode_that_open_gives(tmp_path, mask):
    before = os.umask(mask)
    try:
        with files.whole(tmp_path / "a") as file:
            file.write(b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o666 & ~mask


def test_a_name_as_long_as_a_name_may_be(tmp_path):
    path = tmp_path / ("n" * 255)
    with files.whole(path) as file:
        file.write(b"x")
    assert path.read_bytes() == b"x"


@pytest.mark.parametrize("name", NO_FILE.values(), ids=NO_FILE)
def test_a_name_that_no_file_has(name):
    with pytest.raises(ValueError, match=r"^x: .*no file can have that name; allowed: a file"):
        files.read("x", name, 10)
    with pytest.raises(ValueError, match=r"^file: .*; allowed: a name"), files.whole(name):
        pass


def special(folder):
    os.mkfifo(folder / "pipe")
    return {
        "a pipe": folder / "pipe",
        "Is a directory": folder,
        "a device": os.devnull,
        "No such file": folder / "none",
    }


@unix
@pytest.mark.parametrize("what", ["a pipe", "Is a directory", "a device", "No such file"])
def test_what_is_no_file_is_refused_at_once(tmp_path, what):
    with pytest.raises(ValueError, match=rf"^x: .*: {what}.*; allowed: a "):
        files.read("x", special(tmp_path)[what], 10)


@unix
def test_a_pipe_that_a_shell_hands_over_is_read(tmp_path):
    reader, writer = os.pipe()
    os.write(writer, b"said")
    os.close(writer)
    with files.opened("x", f"/dev/fd/{reader}", pipes=True) as file:
        assert files.some("x", "-", file, 10) == b"said"
    os.close(reader)


def test_no_more_is_read_than_asked_for():
    class Endless(io.RawIOBase):
        read_so_far = 0

        def read(self, count=-1):
            self.read_so_far += count
            return b"0" * count

    endless = Endless()
    with pytest.raises(ValueError, match="^x: -: more than 1,000 bytes; allowed: as many"):
        files.some("x", "-", endless, 1000)
    assert endless.read_so_far == 1001
    assert files.some("x", "-", io.BytesIO(b"0" * 1000), 1000) == b"0" * 1000


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 50_000, "[" * 300 + "]" * 300, '{"a":[' * 150 + "]}" * 150])
def test_deep_json_is_refused(text):
    with pytest.raises(ValueError, match="more than 200 lists and dicts within one another"):
        files.parsed(text)


def test_json_as_deep_as_allowed_is_read():
    text = "[" * files.DEEP + '1, "[[["' + "]" * files.DEEP
    assert files.parsed(text) == json.loads(text)
    with pytest.raises(ValueError, match="within one another"):
        files.parsed(f"[{text}]")


@pytest.mark.parametrize("text", ["", "{", "nul", b"\xff\xfe\x00", "[1,]", "9" * 5000])
def test_what_is_no_json_is_said(text):
    with pytest.raises(ValueError, match="^no JSON, "):
        files.parsed(text)
