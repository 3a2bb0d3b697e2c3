"""What tests of a device without a GPU leave to the tests that have one."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch

from tests.train.steps import unread_gpu

COLLECT = """
import pytest, torch
before = torch.accelerator.current_accelerator()
code = pytest.main(["--collect-only", "--assert=plain", "tests/train", "tests/ann", "tests/test_gpu_proof.py"])
import tests.train.test_on_gpu
print("SAME" if code == 0 and torch.accelerator.current_accelerator() == before else "ANOTHER")
"""


def test_collecting_tests_leaves_the_accelerator_of_torch_alone() -> None:
    done = subprocess.run([sys.executable, "-c", COLLECT], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["SAME"], done.stdout[-2000:] + done.stderr[-2000:]


def test_the_warning_of_the_mode_that_finds_waits_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []

    def set_mode(mode: str) -> None:
        modes.append(mode)
        warnings.warn("Synchronization debug mode is a prototype feature and does not yet detect all", stacklevel=2)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with unread_gpu(), pytest.raises(UserWarning, match="another"):
        warnings.warn("another", stacklevel=1)
    assert modes == ["error", "default"]
