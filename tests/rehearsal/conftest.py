"""What tests of rehearsals share."""

import pytest


@pytest.fixture
def script(tmp_path):
    """Write a training script; returns its path."""

    def write(text):
        (tmp_path / "train.py").write_text(text)
        return str(tmp_path / "train.py")

    return write
