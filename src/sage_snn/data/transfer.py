"""From the host to a device, without waiting for it."""

import torch
from torch import Tensor


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device: the host goes on at once, and the copy waits for its turn there.

    What the device is asked for afterwards finds the values there.
    """
    if device.type == "cpu":
        return tensor
    pinned = tensor.pin_memory() if device.type == "cuda" else tensor
    return pinned.to(
        device, non_blocking=device.type != "mps"
    )  # Apple's may read memory that is something else by then
