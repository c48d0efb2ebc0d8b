"""JupyterLab as `make lab` starts it, over a copy of the book without outputs, and a headless Chromium to read it in."""

import json
import os
import secrets
import socket
import subprocess
import sys
import time

import pytest
from driving import ARTIFACTS, CHROMIUM, FLAGS, ROOT, SETTINGS, Lab, copy, summary


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab on loopback, started by the Makefile's own command."""
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine: install chromium (or google-chrome) to run this")
    home = tmp_path_factory.mktemp("lab")
    folder = home / "book"
    folder.mkdir()
    copy(folder)
    for name, setting in SETTINGS.items():
        path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(setting))
    folders = {"CONFIG_DIR": "config", "DATA_DIR": "data", "RUNTIME_DIR": "runtime"}
    env = os.environ | {f"JUPYTER_{k}": str(home / v) for k, v in folders.items()}
    env |= {"IPYTHONDIR": str(home / "ipython"), "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces")}
    env |= {"JUPYTERLAB_SETTINGS_DIR": str(home / "settings"), "JUPYTER_TOKEN": secrets.token_hex()}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = f"--no-browser --ServerApp.port={port} --ServerApp.port_retries=0"
    (folder / "pyproject.toml").touch()  # what the Makefile's set-up looks at; -o says that it is done
    make = ["make", "-n", "-s", "-f", ROOT / "Makefile", "-o", f"{sys.prefix}/.installed", "lab"]
    done = subprocess.run(
        [*make, f"VENV={sys.prefix}", f"LAB_FLAGS={flags}"], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0 and "jupyter lab" in done.stdout, done.stdout + done.stderr
    log = home / "lab.log"
    with log.open("wb") as said:
        server = subprocess.Popen(["sh", "-c", f"exec {done.stdout}"], cwd=folder, env=env, stdout=said, stderr=said)
    running = Lab(f"http://127.0.0.1:{port}", env["JUPYTER_TOKEN"], folder, server)
    try:
        for _ in range(600):
            if server.poll() is not None:
                pytest.fail(f"JupyterLab did not start:\n{log.read_text()}")
            try:
                running.kernels()
                break
            except OSError:
                time.sleep(0.1)
        else:
            pytest.fail(f"JupyterLab did not answer in a minute:\n{log.read_text()}")
        yield running
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture(scope="module")
def answers(request):
    """What -> its explorers' answers in milliseconds, told and kept at the end."""
    found = {}
    yield found
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    (ARTIFACTS / f"{request.path.stem.removeprefix('test_')}.json").write_text(json.dumps(found, indent=1))
    print(*(f"\n{name}: {summary(times)}" for name, times in found.items()), sep="")
    print("all, from a key to the painted picture:", summary([t for times in found.values() for t in times]))


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine: install chromium (or google-chrome) to run this")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("chromium"),
            executable_path=CHROMIUM,
            args=FLAGS,
            viewport={"width": 1400, "height": 1000},
        )
        yield browser
        browser.close()
