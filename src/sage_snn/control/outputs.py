"""Hooks that look at what modules give, and at nothing else."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


class OutputHook:
    """A forward hook that does not ask for inputs, so that a node that has it may still normalise them itself."""

    reads_output_only = True

    def __init__(self, look: Callable[[Tensor], None]) -> None:
        self.look = look

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> None:
        """Show the output."""
        self.look(output)


@contextmanager
def watching(looks: Iterable[tuple[nn.Module, Callable[[Tensor], None]]]) -> Iterator[None]:
    """Inside, every output of each module is shown to the function beside it."""
    handles = [module.register_forward_hook(OutputHook(look)) for module, look in looks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
