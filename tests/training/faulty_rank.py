"""What every process of tests/training/test_faults.py does: a short run, in which the second has a fault."""

import importlib.util
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

from sage_snn.runs import RunError
from sage_snn.training import devices, train
from sage_snn.training import loop as loop_module

_spec = importlib.util.spec_from_file_location("tiny_runs", Path(__file__).with_name("conftest.py"))
tiny_runs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny_runs)

FAULTS = {
    "none": lambda: None,
    "lags": lambda: time.sleep(3),
    "hangs": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


def main(folder: Path, fault: str) -> None:
    devices.PATIENCE = timedelta(seconds=15)  # and not half an hour
    original, steps = loop_module.Training._backward, []

    def backward(self, batches):
        steps.append(1)
        if len(steps) == 4 and os.environ["RANK"] == "1":
            FAULTS[fault]()
        return original(self, batches)

    loop_module.Training._backward = backward
    try:
        train("digits", folder, settings=tiny_runs.TINY, quiet=True, resume=True)
    except RunError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
