"""Signals: where they may come, and where they wait."""

import dis
import gc
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import interrupts as harness
import pytest

import everybyte as eb
from everybyte import command
from everybyte.common import interrupts
from everybyte.common.interrupts import Ended, Endings, Held

TERM = signal.SIGTERM


def test_held_it_waits_for_the_end():
    done = []
    with pytest.raises(KeyboardInterrupt), Held():
        assert not interrupts.waiting()
        signal.raise_signal(signal.SIGINT)
        with Held():
            assert interrupts.waiting()
        done.append("after the inner one")
    assert done and signal.getsignal(signal.SIGINT) is signal.default_int_handler and not interrupts.waiting()


def test_the_others_wait_too():
    done = []
    with pytest.raises(Ended) as raised, Endings() as endings:
        try:
            with Held():
                signal.raise_signal(TERM)
                done.append(1)
        finally:
            endings.undo()  # so that it ends nobody
    assert done and raised.value.number == TERM and signal.getsignal(TERM) == signal.SIG_DFL


def test_a_second_one_waits_no_longer_than_patience():
    with pytest.raises(KeyboardInterrupt), Held(patience=0.05):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.1)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it waited")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler and Held.outermost is None


@pytest.mark.parametrize("number", [signal.SIGINT, *interrupts.ENDING])
def test_what_is_being_imported_loses_none(monkeypatch, number):
    """NumPy's C forgets one, PyTorch's C++ ends the process."""

    def loses(name, package):
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            pass

    with pytest.raises(KeyboardInterrupt) as raised, Endings(exits=False):
        monkeypatch.setattr(eb, "import_module", loses)
        eb.__getattr__("dry_run")
    assert getattr(raised.value, "number", signal.SIGINT) == number


def test_an_error_is_not_lost_to_what_waits():
    with pytest.raises(KeyboardInterrupt) as raised, Held():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("of the block")
    assert isinstance(raised.value.__context__, ValueError)


def test_what_somebody_else_handles_stays_theirs():
    seen = []
    before = [(n, signal.signal(n, lambda number, _: seen.append(number))) for n in (signal.SIGINT, TERM)]
    try:
        with Endings(), Held():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(TERM)
        assert seen == [signal.SIGINT, TERM]
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def test_elsewhere_than_in_the_main_thread_nothing_changes():
    seen = []

    def look():
        with Endings(), Held():
            seen.append((signal.getsignal(TERM), Held.outermost))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [(signal.SIG_DFL, None)]


@pytest.mark.parametrize("number", [signal.SIGINT, *interrupts.ENDING])
def test_one_that_python_would_forget_comes_again(number):
    class Interrupted:
        def __del__(self):
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt) as raised, Endings(exits=False):
        Interrupted()
        gc.collect()
        for _ in range(10_000_000):
            pass
    assert getattr(raised.value, "number", signal.SIGINT) == number


def test_a_picture_that_is_interrupted_is_no_mistake_of_its_own(tmp_path, monkeypatch, capsys):
    def png(_):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("Invalid bounding box") from None
        return b""

    monkeypatch.setattr("everybyte.draw.png", png)
    assert command.main(["snapshot", str(harness.EXAMPLE), "--figure", str(tmp_path / "x.png")]) == 130
    assert capsys.readouterr().err == "everybyte: interrupted\n" and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", interrupts.ENDING)
def test_one_that_comes_as_its_handler_does_leaves_none(monkeypatch, number):
    def handled(which, handler, usual=signal.signal):
        found = usual(which, handler)
        if which == number and handler is interrupts._come:
            signal.raise_signal(number)
        return found

    hook = sys.unraisablehook
    monkeypatch.setattr(signal, "signal", handled)
    with pytest.raises(Ended), Endings():
        pytest.fail("it did not come")
    assert [signal.getsignal(n) for n in interrupts.ENDING] == [signal.SIG_DFL] * len(interrupts.ENDING)
    assert sys.unraisablehook is hook


def test_whom_it_ends_has_the_shells_status():
    code = "import signal\nfrom everybyte.common.interrupts import Endings\nwith Endings(): signal.raise_signal(15)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (143, "")


ENDS = """
import signal, sys
from everybyte import command
command.answers.predict = lambda *_, **__: signal.raise_signal(int(sys.argv[1]))
sys.exit(command.main(["budget", "gpt2"]))
"""


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGINT, "interrupted"), *((number, f"ended by {number.name}") for number in interrupts.ENDING)],
)
def test_the_command_says_so_in_one_line(number, said):
    done = subprocess.run([sys.executable, "-c", ENDS, str(int(number))], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", f"everybyte: {said}\n")


@pytest.fixture
def temporary(tmp_path_factory, monkeypatch):
    """A place for temporary files in which nobody else has any."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


def test_a_command_that_is_interrupted_leaves_nothing(tmp_path, temporary):
    tally = harness.inside("budget", ["budget", "gpt2"], 25, random.Random(0), tmp_path)
    assert tally.failed == [] and tally.came == 25


def left(tmp_path, kind):
    """A command that, interrupted, leaves something, or says another thing."""

    def main(words):
        with interrupts.Endings():
            try:
                time.sleep(0.01)
                print("the answer")
                return 0
            except KeyboardInterrupt as error:
                if kind == "a filter":
                    warnings.simplefilter("ignore", ResourceWarning)
                elif kind == "a part":
                    (tmp_path / "x.part").touch()
                elif kind == "a hook":
                    sys.excepthook = print
                elif kind == "gc":
                    gc.disable()
                elif kind == "status":
                    return 0
                print("everybyte: interrupted" + "\n" * (kind == "two lines"), file=sys.stderr)
                return 128 + getattr(error, "number", signal.SIGINT)

    return main


@pytest.mark.parametrize("kind", ["a filter", "a part", "a hook", "gc", "status", "two lines", None])
def test_the_harness_sees_what_is_left(tmp_path, temporary, monkeypatch, kind):
    monkeypatch.setattr(command, "main", left(tmp_path, kind))
    monkeypatch.setattr(harness, "SIGNALS", (signal.SIGINT,))
    hook = sys.excepthook
    try:
        with warnings.catch_warnings():
            tally = harness.inside("it", [], 5, random.Random(0), tmp_path)
    finally:
        gc.enable()
        sys.excepthook = hook
    assert tally.came >= 3 and bool(tally.failed) is (kind is not None)


def test_the_harness_counts_the_processes_that_are_left(tmp_path):
    mark = "0" * 16
    environment = {harness.MARK: mark, "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(["sleep", "300"], env=environment) as process:
        assert [found.pid for found in harness.marked(mark)] == [process.pid]
        process.kill()
    assert harness.marked(mark) == []


def held_while(number, place):
    """Hold and let go, with a signal after the `place`-th call in it, where Python looks for some; whether there is such a place."""
    count, before, entered = 0, None, {Held.__enter__.__code__, Held.__exit__.__code__}

    def look(frame, event, _):
        nonlocal count, before
        frame.f_trace_opcodes = frame.f_code in entered
        if frame.f_code not in entered:
            return None
        if event == "opcode":
            if before is not None and before.startswith("CALL"):
                count += 1
                if count == place:
                    signal.raise_signal(number)
            before = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        return look

    endings = Endings(exits=False)
    try:
        with endings:
            sys.settrace(look)
            try:
                with Held():
                    pass
            finally:
                sys.settrace(None)
    except KeyboardInterrupt:
        endings.undo()
    return count >= place


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="later Pythons trace instructions otherwise")
@pytest.mark.parametrize("number", [signal.SIGINT, TERM])
def test_wherever_one_comes_while_it_is_held_or_let_go_nothing_is_left(number):
    place = 1
    while held_while(number, place):
        assert Held.outermost is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler, place
        assert signal.getsignal(TERM) == signal.SIG_DFL
        place += 1
    assert place > 5
