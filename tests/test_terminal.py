"""What the command prints: in any encoding, with closed streams, and nothing of a stranger's that a terminal would act on."""

import io
import json
import os
import pickle
import subprocess
import sys

import pytest

import everybyte as eb
from everybyte.command import main
from everybyte.common import checks, terminal
from everybyte.common.tables import Table

ODD = {
    "colors": "\x1b[31mred\x1b[0m", "a cleared screen": "\x1b[2J", "C1": "\x9b31m", "a new line": "a\nb", "a bell": "\x07",
    "a carriage return": "a\rb", "bidi": "\u202etxt.exe", "an isolate": "\u2066x", "half a surrogate": "\ud800", "a line of Unicode": "a\u2028b",
}  # fmt: skip


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_text_from_outside_is_printable_wherever_it_is_shown(text, capsys):
    for said in (checks.printable(text), checks.shown(text), repr(Table([text, "b"], [["x", "y"]], "c"))):
        assert all(line.isprintable() for line in said.split("\n"))
    cells, usual = repr(Table(["a"], [[text]], text)), repr(Table(["a"], [["x"]], "y"))
    assert cells.count("\n") == usual.count("\n") and cells.replace("\n", "").isprintable()
    assert main(["doctor", text]) == main(["snapshot", text]) == main(["budget", text]) == 2
    lines = capsys.readouterr().err.split("\n")
    assert len(lines) == 4 and all(line.isprintable() for line in lines)


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_frames_of_a_snapshot_are_printable(text, capsys, tmp_path):
    frames = [{"filename": f"/me/{text}.py", "line": 1, "name": text}]
    block = {"size": 512, "requested_size": 512, "state": "active_allocated", "frames": frames}
    segment = {"address": 0, "total_size": 512, "allocated_size": 512, "blocks": [block]}
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment]}))
    assert main(["snapshot", str(path)]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 7 and all(line.isprintable() for line in out.split("\n"))
    assert all(row.where.isprintable() for row in eb.snapshot(path).held())


def test_plain_text_stays_as_it_is():
    assert (
        checks.printable("GPU × 3, 日本 é") == "GPU × 3, 日本 é"
        and checks.shown("a'b") == repr("a'b")
        and checks.shown(3) == "3"
    )


class Silent:
    def __repr__(self):
        raise RuntimeError("no")


LONG = {
    "text": "x" * 10_000,
    "bytes": b"x" * 10_000,
    "a number": 10**5000,
    "a list": [0] * 9999,
    "silent": Silent(),
    "ESC": "\x1b" * 300,
}


@pytest.mark.parametrize("value", LONG.values(), ids=LONG)
def test_a_value_is_repeated_in_part(value):
    with pytest.raises(ValueError, match=r"Setup\.precision: ") as raised:
        eb.Setup(precision=value)
    assert str(raised.value).isprintable() and len(str(raised.value)) < 200 + 4 * checks.SHOWN + 100


def test_what_was_left_out_is_counted():
    assert checks.printable("x" * 1234, 200) == "x" * 200 + "… (1,034 characters more)"
    assert checks.shown("x" * 1234) == repr("x" * 200) + "… (1,034 characters more)"


@pytest.mark.parametrize(
    "arguments", [["budget", "gpt2", "--batch", "9" * 5000], ["budget", "g" * 5000], ["doctor", "f" * 5000]]
)
def test_a_long_word_is_cut_in_the_line(arguments, capsys):
    assert main(arguments) == 2
    assert len(capsys.readouterr().err) < 1500


def test_a_long_line_of_somebody_elses_is_cut(capsys):
    terminal.complain("word " * 5000)
    assert 3000 < len(capsys.readouterr().err) < terminal.LINE + 100


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "ascii", "utf-8"])
@pytest.mark.parametrize(
    "arguments",
    [["fit", "gpt2", "--gpu", "rtx-4090", "--precision", "bf16-mixed"], ["gpus"], ["--help"]],
)
def test_an_answer_in_any_encoding(arguments, encoding, monkeypatch, capsys):
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        if arguments == ["--help"]:
            with pytest.raises(SystemExit) as done:
                main(arguments)
            assert done.value.code == 0
        else:
            assert main(arguments) == 0
    said = stream.buffer.getvalue().decode(encoding)
    assert len(said) > 100 and capsys.readouterr().err == ""
    if arguments[0] == "fit":
        assert ("−" if encoding == "utf-8" else "-") + " driver" in said


@pytest.mark.parametrize(
    "text, said", [("− × ²", "- x ^2"), ("a → b…", "a -> b..."), ("日", "\\u65e5"), ("😀", "\\U0001f600")]
)
def test_what_an_encoding_lacks(text, said):
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    terminal.write(text, stream)
    assert stream.buffer.getvalue().decode() == said


#: A command, which standard streams are closed, its status.
CLOSED = [("doctor -", (0,), 2), ("bugdet", (0, 2), 2), ("--help", (1,), 0), ("gpus", (0, 1, 2), 0)]


@pytest.mark.skipif(sys.platform == "win32", reason="a shell closes streams by number on Unix")
@pytest.mark.parametrize("command, closed, status", CLOSED)
def test_closed_streams(command, closed, status):
    """Nothing stands where it should not, and what is wrong is said in a line where it can be."""
    program = f"import os, sys; [os.close(n) for n in {closed}]; os.execv(sys.executable, [sys.executable, '-m', 'everybyte_command', *{command.split()}])"
    done = subprocess.run(
        [sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == status
    assert (
        (done.stderr == "" or 2 not in closed)
        and (done.stdout == "" or 1 not in closed)
        and "Traceback" not in done.stderr
    )
    if closed == (0,):
        assert (
            done.stderr
            == "everybyte: doctor.file: - with a closed standard input; allowed: a file, or text on standard input\n"
        )


@pytest.mark.skipif(sys.platform == "win32", reason="numbers of files are Unix's")
def test_a_file_gets_no_number_of_a_closed_stream():
    program = "import os; os.close(2); from everybyte.common import terminal; terminal.hold(); print(open(os.devnull).fileno() > 2)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "True\n")


def test_nobody_reads_what_is_wrong(monkeypatch):
    """The status tells it all the same."""
    reader, writer = os.pipe()
    os.close(reader)
    with monkeypatch.context() as patch, open(writer, "w", encoding="utf-8") as stream:
        patch.setattr(sys, "stderr", stream)
        assert main(["bugdet"]) == 2
        terminal.note("more")


def test_json_has_escapes_and_no_characters_of_control(capsys, monkeypatch):
    monkeypatch.setattr("everybyte.command.answers.gpus", lambda _: ({"name": "\x1b\u202e"}, "x", 0))
    assert main(["gpus", "--json"]) == 0
    assert json.loads(out := capsys.readouterr().out) == {"name": "\x1b\u202e"} and out.rstrip("\n").isprintable()


def test_a_bar_is_for_a_terminal(monkeypatch):
    class Tty(io.StringIO):
        def isatty(self):
            return True

    for stream, shown in ((Tty(), True), (io.StringIO(), False), (None, False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with terminal.bar(total=3, desc="reading") as bar:
            bar.delay, bar.start_t = 0, bar.start_t - 3 if shown else 0
            bar.update(3)
            if shown:
                bar.refresh()
        assert stream is None or ("reading" in stream.getvalue()) is shown


@pytest.mark.parametrize("tty", [False, True])
def test_what_reads_needs_no_tqdm(monkeypatch, tmp_path, capsys, tty):
    """It comes with the notebooks: who has the formulas alone reads messages and claims too."""
    for name in ("tqdm", "tqdm.auto"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: tty)
    path = tmp_path / "oom.txt"
    path.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", encoding="utf-8")
    assert main(["doctor", str(path)]) == 0
    assert "2.00 GiB" in capsys.readouterr().out
    assert list(terminal.bar([1, 2], desc="claims")) == [1, 2]
