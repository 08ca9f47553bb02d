"""How a run is asked to stop."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class StopRequest:
    """Set by SIGINT or SIGTERM, read between steps."""

    asked = False


@contextmanager
def stopping_politely() -> Iterator[StopRequest]:
    """SIGINT and SIGTERM ask to stop after the current step; a second one stops at once."""
    request = StopRequest()
    before: dict[int, Any] = {}

    def ask(number: int, frame: Any) -> None:
        request.asked = True
        signal.signal(number, before[number] or signal.SIG_DFL)

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, ask)
    except ValueError:  # not the main thread: nobody can be asked here
        before.clear()
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
