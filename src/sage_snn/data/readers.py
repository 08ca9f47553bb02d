"""SpikingJelly's readers of event data."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def readers() -> Any:
    """The module `spikingjelly.datasets`, also where torchaudio cannot be imported.

    It asks for torchaudio, which it needs for sounds only, and which refuses a torch that was built for another CUDA.
    """
    try:
        return import_module("spikingjelly.datasets")
    except Exception:  # torchaudio's is a RuntimeError; what else is wrong, the second time will say
        if sys.modules.get("torchaudio") is not None:
            raise
    hidden = {name: sys.modules[name] for name in ("torchaudio",) if name in sys.modules}  # as None, by somebody else
    sys.modules["torchaudio"] = ModuleType("torchaudio")  # an empty one, for as long as the import takes
    try:
        return import_module("spikingjelly.datasets")
    finally:
        del sys.modules["torchaudio"]
        sys.modules.update(hidden)
