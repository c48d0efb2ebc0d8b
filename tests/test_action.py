"""The action for pull requests: what it uses is pinned, what others write is never a command's text, and its steps run here without the network."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from test_workflows import NEEDS, PATHS

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tools" / "action"
ACTION = yaml.safe_load((FOLDER / "action.yml").read_text(encoding="utf-8"))
STEPS = {step.get("id"): step for step in ACTION["runs"]["steps"]}
USES = re.compile(r"uses: ((?:actions|pypa)/\S+@\w{40} # v\S+?);?\s")


def test_its_actions_are_those_of_the_workflows_by_commit():
    used = USES.findall((FOLDER / "action.yml").read_text(encoding="utf-8"))
    known = {use for path in PATHS for use in USES.findall(path.read_text(encoding="utf-8"))}
    assert len(used) == sum("uses" in step for step in STEPS.values()) == 2 and set(used) <= known
    assert not any(NEEDS[use.partition("@")[0]] for use in used)


def test_no_text_of_others_stands_in_a_command_and_the_last_step_alone_has_the_token():
    runs = [step for step in ACTION["runs"]["steps"] if "run" in step]
    assert ACTION["runs"]["using"] == "composite" and all(step["shell"] == "bash" for step in runs)
    assert not [step["run"] for step in runs if "${{" in step["run"]]
    given = [step.get("id") for step in ACTION["runs"]["steps"] if "inputs.token" in str(step)]
    assert given == ["comment"]


def test_every_input_is_used_and_told_of():
    text, told = (FOLDER / "action.yml").read_text(encoding="utf-8"), (FOLDER / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(ACTION["inputs"])
    assert set(ACTION["inputs"]) <= set(re.findall(r"`([\w-]+)`", told.partition("| input | |")[2]))
    example = yaml.safe_load(told.partition("```yaml\n")[2].partition("```")[0])
    [step] = [step for step in example["jobs"]["peak"]["steps"] if "tools/action" in step["uses"]]
    assert set(step["with"]) <= set(ACTION["inputs"]) and set(example["jobs"]["peak"]["permissions"]) == {
        "contents",
        "pull-requests",
    }


@pytest.fixture
def runner(tmp_path):
    """A step's program as a runner starts it, with the folders and files that it gives; what it wrote into its outputs and the summary."""
    for name in ("home", "temp", "bin", "work"):
        (tmp_path / name).mkdir()

    def run(step, **environment):
        (tmp_path / "output").write_text("")
        variables = {
            "HOME": tmp_path / "home", "RUNNER_TEMP": tmp_path / "temp", "GITHUB_OUTPUT": tmp_path / "output", "GITHUB_STEP_SUMMARY": tmp_path / "summary",
            "GITHUB_ACTION_PATH": FOLDER, "GITHUB_REPOSITORY": "me/mine", "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHON": sys.executable,
        }  # fmt: skip
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EVERYBYTE")}
        command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", STEPS[step]["run"]]
        environment = kept | {name: str(value) for name, value in (variables | environment).items()}
        done = subprocess.run(
            command, cwd=tmp_path / "work", env=environment, capture_output=True, text=True, timeout=300
        )
        return done, (tmp_path / "output").read_text()

    return run


def test_another_package_is_another_environment(runner):
    keys = [runner("key", PACKAGES=packages)[1] for packages in ("", "a, b", "")]
    assert keys[0] == keys[2] != keys[1] and all(
        re.fullmatch(r"key=everybyte-rehearsal-[0-9a-f]{32}\n", key) for key in keys
    )


@pytest.mark.parametrize(
    ("known", "asked"),
    [
        ("", "repos/me/mine/issues/7/comments"),
        ("31\n32", "-X PATCH repos/me/mine/issues/comments/31"),
        ("fails", None),
    ],
)
def test_one_comment_is_written_and_then_written_anew(runner, tmp_path, known, asked):
    gh = tmp_path / "bin/gh"
    gh.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ncase "$*" in *paginate*) [ "$KNOWN" != fails ] && echo "$KNOWN";; esac\n'
    )
    gh.chmod(0o755)
    done, _ = runner("comment", NUMBER=7, NAME="train", KNOWN=known, GH_TOKEN="x")
    first, *rest = (tmp_path / "asked").read_text().splitlines()
    assert (
        done.returncode == 0
        and "--paginate repos/me/mine/issues/7/comments" in first
        and "<!-- everybyte: train -->" in first
    )
    assert rest == ([f"api --silent {asked} -F body=@{tmp_path}/temp/everybyte.md"] if asked else [])
    assert ("::notice::" in done.stdout) is (asked is None)


def test_a_merge_is_rehearsed_beside_its_first_parent_in_a_shallow_checkout(here, runner, tmp_path):
    origin = tmp_path / "origin"
    origin.mkdir()

    def git(*words, cwd=origin):
        subprocess.run(
            ["git", "-c", "user.email=a@b", "-c", "user.name=a", *words], cwd=cwd, check=True, capture_output=True
        )

    git("init", "-q", "-b", "main")
    for rows in (64, 1024, 4096):
        text = f"import sys, torch\nassert sys.argv[1] == 'a b'\nx = torch.ones({rows}, 256, device='cuda')\n"
        (origin / "train.py").write_text(text)
        git("add", ".")
        git("commit", "-q", "-m", f"{rows} rows")
    git("clone", "-q", "--depth", "2", f"file://{origin}", str(tmp_path / "work"), cwd=tmp_path)
    (tmp_path / "home/.everybyte-rehearsal").symlink_to(here.folder)
    asked = {
        "COMMAND": "python train.py 'a b'",
        "GPU": "h200",
        "CARRY": "",
        "OVER": "1MiB",
        "LARGEST": "",
        "OPTIONS": "--steps 1",
        "BASE": "HEAD^1",
        "HEAD": "HEAD",
        "NAME": "train",
    }
    done, output = runner("rehearse", **asked)
    assert (done.returncode, output) == (0, "status=1\n"), done.stderr
    said = (tmp_path / "summary").read_text()
    assert (
        said.startswith("<!-- everybyte: train -->\n**peak +3.00 MiB in train.py:3**")
        and said == (tmp_path / "temp/everybyte.md").read_text()
    )
    failed, output = runner("rehearse", **asked | {"COMMAND": "python train.py"})
    assert failed.returncode == 2 and "ended with exit status 1 (at " in failed.stderr
