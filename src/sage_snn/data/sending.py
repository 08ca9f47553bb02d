"""Batches on their way to a device while it is busy with the one before."""

from collections.abc import Iterator

import torch

from ..compat import sent
from .loader import Batch


def ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches with images and labels on a device; each is asked for, and sent, before the one before is used.

    On a CPU nothing is early: random numbers are drawn in the order that they always were.
    """
    if device.type == "cpu":
        yield from batches
        return
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # copies need not wait for what is computed
    waiting: _Coming | None = None
    for batch in batches:
        coming = _Coming(batch, device, stream)
        if waiting is not None:
            yield waiting.arrived()
        waiting = coming
    if waiting is not None:
        yield waiting.arrived()


class _Coming:
    """A batch that is being copied, on a stream of its own if there is one."""

    def __init__(self, batch: Batch, device: torch.device, stream: torch.cuda.Stream | None) -> None:
        with torch.cuda.stream(stream):
            self._batch = Batch(sent(batch.images, device), sent(batch.labels, device), batch.indices)
            self._done = None if stream is None else stream.record_event()

    def arrived(self) -> Batch:
        """The batch; what is computed from now on waits for its copy, the host does not."""
        if self._done is not None:
            now = torch.cuda.current_stream(self._batch.images.device)
            now.wait_event(self._done)
            for tensor in (self._batch.images, self._batch.labels):
                tensor.record_stream(now)  # its memory is not free before this stream has used it
        return self._batch
