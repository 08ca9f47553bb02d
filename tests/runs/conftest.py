"""Runs to look at: the tiny ones that the tests of training make."""

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location("tiny_runs", Path(__file__).parents[1] / "training" / "conftest.py")
_training = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_training)

finished, tiny, interrupted = _training.finished, _training.tiny, _training.interrupted
