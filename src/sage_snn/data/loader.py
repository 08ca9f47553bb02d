"""Batches whose content depends on seed, epoch and position alone: not on workers, nor on where one resumed."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from .dataset import Labelled
from .errors import DataError
from .randomness import borrowed, digest, reseed
from .transform import Transform

_SECONDS_TO_STOP = 60


def usable_cores() -> int:
    """Cores that this process may use, where the system tells; else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Batch(NamedTuple):
    """Images (B, C, H, W) or events (T, B, C, H, W), float32, their labels (B,) and places in the set (B,), int64."""

    images: Tensor
    labels: Tensor
    indices: Tensor


class Request(NamedTuple):
    """A batch to be made. It names its epoch, so that workers which live on never keep a stale one."""

    epoch: int
    indices: Sequence[int]


class _Maker:
    """Makes batches on request, in this process or in a worker."""

    def __init__(self, images: Labelled, transform: Callable[[Any], Tensor], seed: int, seeded: bool) -> None:
        self.images, self.transform, self.seed, self.seeded = images, transform, seed, seeded
        self.is_plain = isinstance(transform, Transform) and transform.is_plain_for(images.pixels)

    def __getitem__(self, request: Request) -> Batch:
        indices = torch.tensor(request.indices)
        return Batch(self._made(request, indices), self.images.labels[indices], indices)

    def _made(self, request: Request, indices: Tensor) -> Tensor:
        pixels = self.images.pixels
        if self.is_plain and isinstance(pixels, Tensor) and isinstance(self.transform, Transform):
            return self.transform.batch(pixels[indices])
        axis = int(self.images.is_events)  # time comes first
        if not self.seeded:
            return torch.stack([self.transform(self.images.item(i)) for i in request.indices], axis)
        with borrowed():
            return torch.stack([self._image(request.epoch, i) for i in request.indices], axis)

    def _image(self, epoch: int, index: int) -> Tensor:
        reseed(self.seed, epoch, index)
        return self.transform(self.images.item(index))


class _Worker:
    """The maker in a worker: errors travel as results, else torch would wrap their message in a traceback."""

    def __init__(self, maker: _Maker) -> None:
        self.maker = maker

    def __getitem__(self, request: Request) -> Batch | DataError:
        try:
            return self.maker[request]
        except DataError as error:
            return DataError(*error.args)  # without the frames that the old one holds


def _outlive_a_request_to_stop(_: int) -> None:
    """SIGTERM and SIGINT reach a whole group of processes; the one that trains needs batches until it has stopped."""

    def end_later(number: int, frame: object) -> None:
        signal.alarm(_SECONDS_TO_STOP)  # and not never: whoever waits for this process sends SIGTERM, too

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end_later)


@contextmanager
def telling_of_lost_workers() -> Iterator[None]:
    """A worker that died is told in a line; torch has no error of its own for it, and raises it wherever one stands."""
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        raise _lost(str(error).splitlines()[0].rstrip(". ")) from None


def _next(batches: Iterator[Batch | DataError]) -> Batch | DataError | None:
    """The next one from the workers; None after the last."""
    try:
        with telling_of_lost_workers():
            return next(batches, None)
    except (ConnectionError, EOFError) as error:  # a worker took its end of a batch with it
        raise _lost(str(error) or type(error).__name__) from None


def _lost(told: str) -> DataError:
    cure = "memory may be short: set fewer `workers`, and go on with --resume"
    return DataError(f"a process that makes batches died ({told}); {cure}")


class _Plan:
    """The requests of the epoch at hand; a DataLoader asks for them anew each time it is iterated."""

    def __init__(self) -> None:
        self.requests: Sequence[Request] = ()

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)


class Loader:
    """Batches of `batch_size` images for each of `ranks` processes; together they are one batch of the whole.

    `seeded=False` draws augmentations from the global generators instead of from (seed, epoch, image).
    """

    def __init__(
        self,
        images: Labelled,
        transform: Callable[[Any], Tensor],
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = False,
        drop_last: bool = False,
        rank: int = 0,
        ranks: int = 1,
        workers: int = 0,
        seeded: bool = True,
    ) -> None:
        if batch_size < 1 or workers < 0 or not 0 <= rank < ranks:
            raise DataError(
                f"batch_size {batch_size} must be at least 1, workers {workers} at least 0, "
                f"rank {rank} in 0..{ranks - 1}"
            )
        self.images, self.batch_size, self.seed, self.shuffle = images, batch_size, seed, shuffle
        self.rank, self.ranks = rank, ranks
        self._global = batch_size * ranks
        whole, rest = divmod(len(images), self._global)
        if drop_last and whole == 0:
            raise DataError(f"{len(images)} images do not fill one batch of {self._global}; use a smaller batch_size")
        if shuffle and not drop_last and 0 < rest < ranks:
            raise DataError(f"the last batch has {rest} images for {ranks} processes, which would wait; use drop_last")
        self._length = whole + (not drop_last and rest > rank)
        self._maker = _Maker(images, transform, seed, seeded)
        self._plan, self._turn = _Plan(), 0
        self._workers = self._start(workers) if workers and not self._maker.is_plain else None

    def __len__(self) -> int:
        """Batches of an epoch on this rank."""
        return self._length

    def epoch(self, epoch: int, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Batches `start` up to `stop` (or the end) of that epoch, the same ones as in the whole of it."""
        if epoch < 0 or not 0 <= start <= len(self):
            raise DataError(f"cannot start epoch {epoch} at batch {start}: an epoch has {len(self)} batches")
        order = self._order(epoch)
        numbers = range(start, len(self) if stop is None else min(stop, len(self)))
        requests = [Request(epoch, self._share(order, number)) for number in numbers]
        return map(self._maker.__getitem__, requests) if self._workers is None else self._from_workers(requests)

    def _order(self, epoch: int) -> Tensor:
        """The order of the images, alike on all ranks."""
        if not self.shuffle:
            return torch.arange(len(self.images))
        seed = int.from_bytes(digest(self.seed, epoch)[:8], "little")
        return torch.randperm(len(self.images), generator=torch.Generator().manual_seed(seed))

    def _share(self, order: Tensor, number: int) -> list[int]:
        return order[number * self._global : (number + 1) * self._global][self.rank :: self.ranks].tolist()

    def _start(self, workers: int) -> DataLoader[Batch | DataError]:
        return DataLoader(
            _Worker(self._maker),  # pyright: ignore[reportArgumentType]  # anything with __getitem__ will do
            batch_size=None,  # a request is a batch already
            sampler=self._plan,
            num_workers=min(workers, usable_cores()),  # more would only wait for each other
            persistent_workers=True,
            worker_init_fn=_outlive_a_request_to_stop,
            # Otherwise every epoch would draw from torch's global state, which no worker count may change.
            generator=torch.Generator(),
        )

    def _from_workers(self, requests: Sequence[Request]) -> Iterator[Batch]:
        if self._workers is None or not requests:
            return
        self._turn += 1
        turn, self._plan.requests = self._turn, requests
        batches = iter(self._workers)
        while (batch := _next(batches)) is not None:
            if isinstance(batch, DataError):
                raise DataError(*batch.args)  # a new one: this frame would hold the old, and it this frame
            yield batch
            if self._turn != turn:
                raise RuntimeError("a later epoch() of this Loader took the workers over; make a second Loader")
