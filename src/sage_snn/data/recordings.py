"""Recordings of an event camera, made into frames of counts when they are asked for.

T frames, two polarities, height and width.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..files import read_bytes, require_room_for_zip
from .dataset import Labelled
from .errors import UNREADABLE, DataError
from .readers import readers

KEYS = ("t", "x", "y", "p")


@dataclass(frozen=True, eq=False)
class Recordings(Labelled):
    """A labelled set of .npz files with the arrays t, x, y and p, an entry per event, as SpikingJelly writes them.

    Each becomes `frames` frames of equally many events (the last one has those left over), of `size` x `size` pixels.
    """

    is_events: ClassVar[bool] = True

    size: int
    frames: int

    def __repr__(self) -> str:
        return f"<{len(self)} recordings>"

    @property
    def channels(self) -> int:
        """The two polarities."""
        return 2

    def item(self, index: int) -> Tensor:
        """Counts of events, float32 (T, 2, size, size)."""
        assert not isinstance(self.pixels, Tensor)
        events = _read(self.pixels[index], self.size)
        integrate = readers().integrate_events_by_fixed_frames_number
        counts = integrate(events, "number", self.frames, self.size, self.size)
        return torch.from_numpy(counts.astype(np.float32))


def _read(path: Path, size: int) -> dict[str, np.ndarray]:
    cure = (
        f"expected an .npz with {', '.join(KEYS)} of events; delete the folder events_np that it is in to make it anew"
    )
    try:
        stream = io.BytesIO(read_bytes(path))
        require_room_for_zip(stream)
        with np.load(stream, allow_pickle=False) as file:
            events = {key: file[key] for key in KEYS}
    except FileNotFoundError:
        raise DataError(f"{path} is gone: it was there when the folder was listed; copy it back") from None
    except (KeyError, *UNREADABLE) as error:
        raise DataError(f"{path} cannot be read ({str(error)[:300]}); {cure}") from None
    shapes = {values.shape for values in events.values()}
    if len(shapes) > 1 or len(shapes.pop()) != 1 or any(values.dtype.kind not in "iub" for values in events.values()):
        raise DataError(f"{path}: {', '.join(KEYS)} are not whole numbers, one of each for every event; {cure}")
    for key in ("x", "y"):
        if events[key].size and not 0 <= events[key].min() <= events[key].max() < size:
            raise DataError(
                f"{path}: {key} goes from {events[key].min()} to {events[key].max()}, outside {size} pixels; {cure}"
            )
    return events
