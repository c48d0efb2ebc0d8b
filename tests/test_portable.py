"""What Windows and macOS would trip over, read from the sources: no such system was at hand."""

import ast
import re
import subprocess
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: Modules, functions and signals that Windows' Python does not have.
MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "tty"}
ABSENT = {
    "os": """fork forkpty killpg getpgid getpgrp setpgid setsid getuid geteuid getgid mkfifo openpty posix_spawn sysconf uname wait wait3
        wait4 waitid WNOHANG chown fchown fchmod nice getloadavg statvfs sched_getaffinity sched_setaffinity pipe2 memfd_create
        sendfile O_NOFOLLOW O_DIRECTORY O_NONBLOCK""".split(),
    "signal": """SIGKILL SIGHUP SIGQUIT SIGALRM SIGPIPE SIGUSR1 SIGUSR2 SIGCHLD SIGSTOP SIGCONT SIGTSTP SIGXCPU alarm setitimer pause
        pthread_kill pthread_sigmask sigwait siginterrupt""".split(),
}
#: Windows' `subprocess` refuses these.
REFUSED = {"preexec_fn", "pass_fds"}
#: Where one of them stands, and what happens on Windows.
ALLOWED = {
    "src/everybyte/evidence/pickles.py": "an ImportError is caught: no limit is set, and the caller is told",
    "src/everybyte/common/children.py": "`hasattr` asks: taskkill ends the tree there",
    "src/everybyte/lab/meters.py": "asked for only where /proc/meminfo says what is free",
    "src/everybyte/lab/records.py": "an ImportError is caught: one recorder at a time",
    "src/everybyte/answers/monitoring.py": "an AttributeError is caught, and so is an ImportError: a ValueError names what is allowed",
    "tools/fuzz.py": "a tool for whoever changes the book, on Linux and macOS",
    "tools/fuzzing/commands.py": "a subject of that tool",
    "tools/interrupts.py": "a tool for whoever changes the book, on Linux and macOS",
    "tools/beside/tell.py": "a tool beside a GPU, on Linux",
    "tools/warm.py": "asked for only where `can_fork` says so",
}
#: Runs on Linux alone: `place.find` refuses any other system by name.
LINUX = "src/everybyte/rehearsal/"
OPENS = {"open", "read_text", "write_text", "fdopen", "NamedTemporaryFile"}
#: What a text without has none of them, and needs no parsing.
WORDS = re.compile(rf"\b({'|'.join([*OPENS, *MODULES, *REFUSED, *sum(ABSENT.values(), [])])})\b")
RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?|.*[<>:\"|?*\\].*|.*[. ]")


@cache
def sources():
    """(name, tree) of each program of the package, the tools and the labs but the rehearsals'."""
    found = []
    for folder in ("src", "tools", "labs"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if not (name := path.relative_to(ROOT).as_posix()).startswith(LINUX) and WORDS.search(text):
                found.append((name, ast.parse(text)))
    return found


def absent(tree: ast.AST):
    """Names that Windows' Python does not have."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in ABSENT.get(node.value.id, ()):
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            yield from {name.name for name in node.names} & MODULES if module is None else {module} & MODULES
            yield from (f"{module}.{name.name}" for name in node.names if name.name in ABSENT.get(module, ()))
        elif isinstance(node, ast.keyword) and node.arg in REFUSED:
            yield node.arg


def unencoded(tree: ast.AST):
    """Calls that open a file as text and leave its encoding to the system."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        said = [node.args[i].value for i in range(min(2, len(node.args))) if isinstance(node.args[i], ast.Constant)]
        said += [k.value.value for k in node.keywords if k.arg == "mode" and isinstance(k.value, ast.Constant)]
        binary = any(isinstance(mode, str) and re.fullmatch(r"[rwxa+]*b[rwxa+]*", mode) for mode in said)
        last = name.rpartition(".")[2]
        other = name == "os.open" or name.split(".")[0] in {"webbrowser", "zipfile", "tarfile", "Image"}
        binary = binary or last == "NamedTemporaryFile" and not said  # its own default
        if last in OPENS and not other and not binary and "encoding" not in {k.arg for k in node.keywords}:
            yield f"{node.lineno}: {ast.unparse(node)[:60]}"


def test_what_windows_lacks_is_asked_for_in_known_places_alone():
    assert {name for name, tree in sources() if [*absent(tree)]} == ALLOWED.keys()


def test_every_text_names_its_encoding():
    assert {name: found for name, tree in sources() if (found := [*unencoded(tree)])} == {}


@pytest.mark.parametrize(
    ("program", "what"),
    [
        ("os.killpg(1, 9)", "os.killpg"), ("process.send_signal(signal.SIGKILL)", "signal.SIGKILL"), ("import fcntl", "fcntl"),
        ("from resource import getrusage", "resource"), ("from os import fork", "os.fork"), ("Popen([], preexec_fn=f)", "preexec_fn"),
    ],
)  # fmt: skip
def test_what_windows_lacks_is_seen(program, what):
    assert [*absent(ast.parse(program))] == [what]


@pytest.mark.parametrize(
    "call", ["open(p)", "open(p, 'w')", "p.read_text()", "p.write_text(t)", "p.open(mode='a')", "os.fdopen(f)"]
)
def test_a_text_without_an_encoding_is_seen(call):
    assert len([*unencoded(ast.parse(call))]) == 1


def test_a_text_with_one_and_bytes_are_not():
    calls = "open(p, 'rb'); p.open('wb'); p.open('a+b', buffering=0); p.read_text(encoding='utf-8'); p.read_bytes(); os.open(p, 0)"
    assert not [*unencoded(ast.parse(calls))]


def impossible(paths: list[str]) -> set[str]:
    """Paths that a checkout on Windows or macOS cannot have: reserved names, and names that differ in case alone."""
    lower = [path.lower() for path in paths]
    reserved = {path for path in paths if any(RESERVED.fullmatch(part) for part in PurePosixPath(path).parts)}
    return reserved | {path for path in paths if lower.count(path.lower()) > 1 or len(path) > 150}


def test_every_path_can_be_checked_out_anywhere():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, encoding="utf-8")
    if listed.returncode:
        pytest.skip("no git here, or an export without its history")
    paths = listed.stdout.rstrip("\0").split("\0")
    assert len(paths) > 100 and impossible(paths) == set()


def test_a_path_that_cannot_be_is_seen():
    paths = ["src/aux.py", "a:b", "notes.", "A/x", "a/x", "fine.py", "auxiliary.py", ".gitignore"]
    assert impossible(paths) == {"src/aux.py", "a:b", "notes.", "A/x", "a/x"}
