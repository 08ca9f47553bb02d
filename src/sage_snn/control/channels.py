"""What is read of a node channel by channel."""

from dataclasses import dataclass

from torch import Tensor

from .source import Firing


@dataclass(eq=False)
class Channels(Firing):
    """The spikes of one node, a value per channel: a signal is given them and the axis that the channels are on.

    How many channels there are shows in the first pass. They are on the third axis of (T, B, C, ...), or on the last.
    """

    width: int = 0

    def arrange(self, outputs: dict[str, Tensor]) -> tuple[Tensor, int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The spikes (T, B, ...), with T = 1 step by step, and the axis."""
        (spikes,), axis = super().arrange(outputs), -1 if self.channels_last else 2
        if spikes.ndim < 3:
            raise ValueError(f"spikes {tuple(spikes.shape)} have no channels; per='group' takes the node as a whole")
        if self.width not in (0, spikes.shape[axis]):
            raise ValueError(
                f"a {type(self.node).__name__} fires on {self.width} channels and on {spikes.shape[axis]}: give each "
                "use of it a node of its own, or pass per='group'"
            )
        self.width = spikes.shape[axis]
        return spikes, axis

    def rows(self, spikes: Tensor, axis: int) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Images times time steps times positions."""
        return spikes.numel() // max(1, spikes.shape[axis])

    def __str__(self) -> str:
        return f"{super().__str__()}, channel by channel"
