"""pytest's plugin: the fixture `memory`, and its two options.

    def test_fits(memory):
        trained = memory.rehearse("python train.py --batch 8", gpu="a100-40gb")
        assert trained.peak < "22 GiB"
        trained.baseline("train")

It stands beside the package, so that a run of pytest that asks for no memory imports nothing of it.
"""

import os
import shlex

import pytest


def pytest_addoption(parser):
    group = parser.getgroup("memory", "peaks of training scripts (everybyte)")
    group.addoption("--memory-update", action="store_true", help="keep the peaks of this run as baselines")
    group.addoption(
        "--memory-strict", action="store_true", help="fail, and do not skip, where no script can be rehearsed"
    )


def pytest_assertrepr_compare(op, left, right):
    failed = getattr(left, "failed", None)
    return failed(op, right) if type(left).__name__ == "Size" and callable(failed) else None


_KNOWN = pytest.StashKey[dict]()


@pytest.fixture
def memory(request):
    """Peaks to assert of: `memory.rehearse("python train.py")`, `memory.budget("gpt2", batch=8)`, `memory.dry_run(...)`."""
    return Memory(request)


class Memory:
    """What the fixture gives. Each of its methods returns an `everybyte.guard.Checked`, with `peak`, `reserved` and `baseline(name)`."""

    def __init__(self, request):
        self._config, self._store = request.config, request.path.with_suffix("")

    def rehearse(self, command, gpu="h200", **options):
        """A training script on a pretended GPU, as `everybyte.rehearsal.rehearse_script` takes it; the same one once in a run of pytest.

        The test is skipped, or with --memory-strict fails, where there is no environment for rehearsals.

        Raises:
            ValueError: where the script ends with an error, as one that runs out of memory does.
        """
        __tracebackhide__ = True
        from everybyte import rehearsal
        from everybyte.guard import Kept

        self._environment(options.get("folder"))
        command = shlex.split(command) if isinstance(command, str) else list(command)
        known = self._config.stash.setdefault(_KNOWN, {})
        asked = (os.getcwd(), *command, gpu, *map(repr, sorted(options.items())))
        if asked not in known:
            found = rehearsal.rehearse_script(command, gpu, **options)
            known[asked] = Kept.of_script(found, self._config.rootpath, options.get("cwd") or "")
        return self._checked(known[asked])

    def budget(self, model, **setup):
        """The formula of a model of the catalog, by name; fields of a `Setup`."""
        import everybyte as eb
        from everybyte.guard import Kept

        return self._checked(
            Kept.of_witness(eb.budget(eb.model(model) if isinstance(model, str) else model, eb.Setup(**setup)))
        )

    def dry_run(self, subject, batch=None, **setup):
        """PyTorch's own step of anything that `everybyte.dry_run` takes; fields of a `Setup`."""
        import everybyte as eb
        from everybyte.guard import Kept

        subject = eb.model(subject) if isinstance(subject, str) else subject
        return self._checked(Kept.of_witness(eb.dry_run(subject, eb.Setup(**setup), batch=batch)))

    def _environment(self, folder):
        __tracebackhide__ = True
        from everybyte.rehearsal import place

        try:
            place.find(folder)
        except ValueError as error:
            if self._config.getoption("--memory-strict"):
                pytest.fail(f"--memory-strict: {error}", pytrace=False)
            pytest.skip(str(error))

    def _checked(self, kept):
        from everybyte.guard import Checked

        return Checked(kept, self._store, self._config.getoption("--memory-update"))
