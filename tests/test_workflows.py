"""What the code host runs for this repository: actions by commit, no permission beyond need, nothing unheld in a release."""

import copy
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PATHS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
#: What an action that is used here needs of the code host's token. An action that is not named may not be used.
NEEDS = {
    "actions/checkout": {"contents": "read"},
    "actions/setup-python": {},
    "actions/setup-node": {},
    "actions/cache": {},
    "actions/upload-artifact": {},
    "actions/download-artifact": {},
    "actions/upload-pages-artifact": {},
    "actions/deploy-pages": {"pages": "write", "id-token": "write"},
    "pypa/gh-action-pypi-publish": {"id-token": "write"},
}
#: Whose files are published: they are made without a cache, which other workflows fill.
PUBLISHED = "release"


def faults(name: str, workflow: dict):
    """What a workflow does that none may, in words."""
    if workflow.get("permissions") != {}:
        yield "permissions for all jobs"
    if "pull_request_target" in workflow[True]:  # YAML's `on`
        yield "a stranger's branch with this repository's token"
    for title, job in workflow["jobs"].items():
        steps, allowed = job.get("steps", [{"uses": job.get("uses")}]), job.get("permissions")
        needed = {}
        for step in steps:
            action, _, commit = (step.get("uses") or "").partition("@")
            run = step.get("run", "")
            if action and not re.fullmatch("[0-9a-f]{40}", commit):
                yield f"{title}: {action} is not pinned by a commit"
            if action and action not in NEEDS:
                yield f"{title}: {action} is unknown"
            needed |= NEEDS.get(action, {})
            if action == "actions/checkout" and step.get("with", {}).get("persist-credentials") is not False:
                yield f"{title}: a checkout keeps credentials"
            for command in re.findall(r"pip3? install[^\n;&|]*", run):
                if "--require-hashes" not in command:
                    yield f"{title}: {command} without digests"
            if re.search(r"\$\{\{[^}]*\b(event|head_ref|ref_name)\b", run):
                yield f"{title}: a stranger's text in a command"
            if name == PUBLISHED and (action == "actions/cache" or "cache" in step.get("with", {})):
                yield f"{title}: a cache in a release"
            if "python -m build" in run and "--no-isolation" not in run:
                yield f"{title}: a build whose tools are fetched without digests"
        programs = " ".join(step.get("run", "") for step in steps)
        if any("upload-artifact" in (step.get("uses") or "") for step in steps):
            if fetches := re.search(r"\b(uvx|uv|pipx|npx|npm|curl|wget)\s", programs):
                yield f"{title}: {fetches[1]} where the files are made"
        if allowed != needed:
            yield f"{title}: may {allowed}, needs {needed}"
        if "write" in str(allowed) and any("run" in step or "actions/checkout" in step["uses"] for step in steps):
            yield f"{title}: runs programs, and may write"
        if "timeout-minutes" not in job:
            yield f"{title}: no end"


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_workflow_does_what_it_may(path):
    assert [*faults(path.stem, read(path))] == []


def test_an_action_has_one_commit_and_its_version_beside():
    """The comment is for whoever reads; what holds is the commit."""
    text = "".join(path.read_text(encoding="utf-8") for path in PATHS)
    used = re.findall(r"uses: (\S+)@(\w+)(.*)", text)
    assert used and all(re.match(r" # v\d+\.\d+\.\d+\b", version) for _, _, version in used)
    assert len({(action, commit, version.split(";")[0]) for action, commit, version in used}) == len(
        {a for a, _, _ in used}
    )


def _set(path, value):
    def change(workflow):
        *way, last = path
        for part in way:
            workflow = workflow[part]
        workflow[last] = value

    return change


BUILD = ("jobs", "build", "steps")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_set(("permissions",), {"contents": "read"}), "permissions for all jobs"),
        (_set((True,), {"pull_request_target": None}), "a stranger's branch"),
        (_set((*BUILD, 1, "uses"), "actions/setup-python@v6"), "setup-python is not pinned"),
        (_set((*BUILD, 1, "uses"), "actions/setup-python@ece7cb0"), "setup-python is not pinned"),
        (_set((*BUILD, 1, "uses"), f"some/action@{'0' * 40}"), "some/action is unknown"),
        (_set((*BUILD, 0, "with"), {"fetch-depth": 0}), "keeps credentials"),
        (_set((*BUILD, 2, "run"), "python -m pip install build uv"), "without digests"),
        (_set((*BUILD, 2, "run"), "true && pip install build"), "without digests"),
        (_set((*BUILD, 2, "run"), "python -m build"), "whose tools are fetched"),
        (_set((*BUILD, 2, "run"), "uvx --from dist/*.whl everybyte"), "uvx where the files are made"),
        (_set((*BUILD, 2, "run"), "echo ${{ github.event.head_commit.message }}"), "a stranger's text"),
        (_set((*BUILD, 1, "with"), {"cache": "pip"}), "a cache in a release"),
        (_set(("jobs", "build", "permissions"), {"contents": "write"}), "runs programs, and may write"),
        (_set(("jobs", "build", "permissions"), {"contents": "read", "id-token": "read"}), "build: may"),
        (_set(("jobs", "publish", "permissions"), {}), "publish: may"),
        (_set(("jobs", "publish", "steps", 0), {"run": "ls"}), "runs programs, and may write"),
        (lambda workflow: workflow["jobs"]["build"].pop("permissions"), "build: may None"),
        (lambda workflow: workflow["jobs"]["build"].pop("timeout-minutes"), "no end"),
    ],
)  # fmt: skip
def test_what_it_may_not_is_seen(change, fault):
    workflow = copy.deepcopy(read(next(path for path in PATHS if path.stem == PUBLISHED)))
    change(workflow)
    assert any(fault in found for found in faults(PUBLISHED, workflow))
