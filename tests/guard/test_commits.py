"""Commits rehearsed in a copy of their repository: what differs, which one did it, and that nothing of the user's is touched."""

import subprocess
from pathlib import Path

import pytest
from pretended import result

from everybyte.command import main
from everybyte.guard import bisect, commits, diff

COMMAND = ["python", "train.py"]


@pytest.fixture
def git(tmp_path, monkeypatch):
    for name in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "someone")
    monkeypatch.chdir(tmp_path)

    def said(*words):
        return subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    said("init", "-q", "-b", "main")
    return said


@pytest.fixture
def history(git, tmp_path, monkeypatch):
    """A history of commits whose train.py holds so many bytes, or fails; and the folders that were rehearsed in."""
    folders = []

    def pretended(command, gpu, cwd, **options):
        text = (cwd / "train.py").read_text()
        assert not (cwd / "left").exists()
        (cwd / "left").touch()
        folders.append(cwd)
        size, *carried = text.split()
        if size == "fails":
            return result([("train.py:1", 8)], status=1)
        return result(
            [
                (f"{cwd}/train.py:1", int(size)),
                *((f"{cwd}/{name}:1", len((cwd / name).read_text())) for name in carried),
            ]
        )

    def made(*sizes):
        for number, size in enumerate(sizes):
            (tmp_path / "train.py").write_text(f"{size}\n")
            (tmp_path / "notes").write_text(str(number))
            git("add", ".")
            git("commit", "-q", "-m", f"Commit {number}")
        return folders

    monkeypatch.setattr(commits, "rehearse_script", pretended)
    return made


@pytest.mark.parametrize("moved", range(1, 8))
def test_the_commit_that_moved_the_peak_is_found(history, moved):
    history(*[100] * moved, *[130] * (8 - moved))
    found = bisect("HEAD~7", "HEAD", COMMAND)
    assert found.moved.head.title == f"Commit {moved}" and found.moved.base.title == f"Commit {moved - 1}"
    assert found.ends == (100, 130) and len(found.tried) <= 5 and not found.between
    assert f"Commit {moved}: peak +30 B in train.py:1" in repr(found)


def test_what_is_less_than_asked_for_has_not_moved(history):
    history(100, 104, 103, 140, 141)
    assert bisect("HEAD~4", "HEAD", COMMAND, over=10).moved.head.title == "Commit 3"
    unmoved = bisect("HEAD~4", "HEAD~2", COMMAND, over=10)
    assert unmoved.moved is None and "No commit moved the peak" in repr(unmoved)


def test_commits_that_fail_are_passed_over_and_named(history):
    history(100, 100, "fails", "fails", 130, 130)
    found = bisect("HEAD~5", "HEAD", COMMAND)
    assert [one.title for one in found.between] == ["Commit 2", "Commit 3"] and found.moved.head.title == "Commit 4"
    assert "or it was one of" in repr(found) and "ended with exit status 1" in repr(found)
    with pytest.raises(ValueError, match=r"ended with exit status 1; .*Commit 3"):
        bisect("HEAD~5", "HEAD~2", COMMAND)


def test_nothing_of_the_user_s_is_touched(history, git, tmp_path):
    folders = history(100, 130)
    (tmp_path / "train.py").write_text("7 edited")
    hook = tmp_path / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    hook.chmod(0o755)

    def state():
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = state()
    found = diff("HEAD~1", "HEAD", COMMAND)
    assert found.change.bytes == 30 and state() == before
    assert folders and not any(folder.is_relative_to(tmp_path) or folder.exists() for folder in folders)


def test_what_git_does_not_have_is_carried_over_by_name(history, git, tmp_path):
    history("100 data/tokens", "130 data/tokens")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/tokens").write_text("12345")
    assert diff("HEAD~1", "HEAD", COMMAND, carried=["data"]).change.after.peak == 135
    with pytest.raises(ValueError, match="--carry: '../x' is not in"):
        diff("HEAD~1", "HEAD", COMMAND, carried=["../x"])


def test_code_of_the_user_s_tree_is_refused(history, git, tmp_path, monkeypatch):
    history(100, 130)
    monkeypatch.setattr(commits, "rehearse_script", lambda *_, **__: result([(f"{tmp_path}/net.py:3", 8)]))
    with pytest.raises(
        ValueError, match="net.py:3, and not the commit's; allowed: one that imports what stands beside it"
    ):
        diff("HEAD~1", "HEAD", COMMAND)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("diff main~9", "commit: 'main~9' is none that git knows here"),
        ("bisect main main~1", "does not come after"),
        ("bisect main main", "does not come after"),
        ("diff main~1 main", "diff: nothing to run; allowed: everybyte diff ... -- python train.py"),
        ("bisect main~1 main python train.py", "main -- python train.py"),
        ("bisect main~1 main --over 3", "--over: value: '3'"),
    ],
)
def test_bad_input_is_said(history, capsys, arguments, words):
    history(100, 130)
    script = [] if "nothing to run" in words or "python" in arguments else ["--", *COMMAND]
    assert main([*arguments.split(), *script]) == 2
    assert words in capsys.readouterr().err


def test_the_command_returns_the_answer(history, capsys):
    history(100, 130)
    assert main(["diff", "main~1", "--over", "20B", "--", *COMMAND]) == 1
    assert "peak +30 B in train.py:1, from" in capsys.readouterr().out
    assert main(["diff", "main~1", "--over", "30B", "--", *COMMAND]) == 0
    assert main(["bisect", "main~1", "main", "--over", "30B", "--", *COMMAND]) == 1
    assert main(["bisect", "main~1", "--", *COMMAND]) == 0
    assert "Commit 1: 130 B" in capsys.readouterr().err


def test_the_largest_batch_at_both(history, git, tmp_path, monkeypatch, capsys):
    history(5 * 2**30, 6 * 2**30)

    def pretended(command, gpu, cwd, memory=None, **options):
        size = int((cwd / "train.py").read_text()) * int(command[-1])
        dies = (
            {"requested": size, "free": 0, "at": "forward", "line": "train.py:1"} if memory and size > memory else None
        )
        return result([(f"{cwd}/train.py:1", size // 2)], command, status=int(bool(dies)), oom=dies)

    monkeypatch.setattr(commits, "rehearse_script", pretended)
    monkeypatch.setattr(commits.scripts, "rehearse_script", pretended)
    assert (
        main(["diff", "HEAD~1", "--largest", "batch=1:64", "--comment", "train", "--", *COMMAND, "--batch", "{batch}"])
        == 0
    )
    said = capsys.readouterr().out
    # The GPU has room for 139 GiB: 27 of 5 GiB, 23 of 6; the peaks are those with 27.
    assert (
        "**peak +13.50 GiB in train.py:1, largest batch 27 to 23**" in said and "` python train.py --batch 27 `" in said
    )
    with pytest.raises(ValueError, match=r"no \{batch\} in the command"):
        diff("HEAD~1", "HEAD", COMMAND, largest=("batch", range(1, 65)))


def test_two_real_commits(here, git, tmp_path, monkeypatch):
    monkeypatch.setenv("EVERYBYTE_REHEARSAL_VENV", str(here.folder))
    for rows in (1024, 4096):
        text = f"import torch\nx = torch.ones({rows}, 256, device='cuda', requires_grad=True)\nx.sum().backward()\n"
        (tmp_path / "train.py").write_text(text)
        git("add", ".")
        git("commit", "-q", "-m", f"{rows} rows")
    found = diff("HEAD~1", "HEAD", COMMAND)
    assert found.change.bytes >= 3 * 1024 * 1024 and found.headline.endswith("train.py:2")
    assert Path.cwd() == tmp_path and {path.name for path in tmp_path.iterdir()} == {".git", "train.py"}
