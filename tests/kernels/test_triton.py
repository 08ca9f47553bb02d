"""The tests of the Triton kernels need Triton's interpreter, which a process has from its start or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
def test_triton_kernels_pass_their_tests_in_the_interpreter():
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TRITON_"))}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "gpu"],
        cwd=TESTS,
        env=own | {"SAGE_SNN_KERNELS": "interpret"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_process_that_has_triton_already_is_told_what_to_set():
    code = "import triton, sage_snn.kernels.lif"
    own = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    run = subprocess.run(
        [sys.executable, "-c", code], env=own | {"SAGE_SNN_KERNELS": "interpret"}, capture_output=True, text=True
    )
    assert "set TRITON_INTERPRET=1 beside SAGE_SNN_KERNELS=interpret" in run.stderr
