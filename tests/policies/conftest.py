"""Our Spikformer with neurons in plain torch, each run by itself: what finer slopes are compared with."""

import pytest
import torch
from torch import nn

from sage_snn.models.spikformer import Spikformer


class LoopLIF(nn.Module):
    """LIF neurons with hard reset, fired one token or one channel at a time; `slopes` (t, b, c, n) broadcasts."""

    def __init__(self, tau=2.0, v_threshold=1.0, **unused):
        super().__init__()
        self.tau, self.v_threshold, self.slopes = tau, v_threshold, torch.full((1, 1, 1, 1), 4.0)

    def forward(self, x):
        """Spikes (T, B, C, N)."""
        slopes = self.slopes.expand(*x.shape[:2], *self.slopes.shape[2:])
        axis = 2 if slopes.shape[2] > 1 else 3
        slopes = slopes.flatten(2).expand(-1, -1, x.shape[axis])
        images = [
            torch.stack(
                [self.part(x[:, b].select(axis - 1, i), slopes[:, b, i]) for i in range(x.shape[axis])], axis - 1
            )
            for b in range(x.shape[1])
        ]
        return torch.stack(images, 1)

    def part(self, x, slopes):
        """Spikes (T, n) of the neurons (T, n) of one token or channel, one slope per time step."""
        v, spikes = torch.zeros_like(x[0]), []
        for current, slope in zip(x, slopes.tolist(), strict=True):
            charged = v + (current - v) / self.tau
            smooth = torch.sigmoid(slope * (charged - self.v_threshold))
            spike = (charged >= self.v_threshold).to(x.dtype) + (smooth - smooth.detach())
            v = (1 - spike.detach()) * charged
            spikes.append(spike)
        return torch.stack(spikes)


@pytest.fixture
def as_loops():
    """The network of `ours()` with the weights of a model, in eval mode; a function of block and place gives slopes."""

    def build(model, slopes_of):
        loops = Spikformer(depth=2, dim=32, heads=4, time_steps=2, image_size=16, patch_size=4, neuron=LoopLIF)
        loops.to(next(model.parameters()).dtype).load_state_dict(model.state_dict())
        for index, block in enumerate(loops.blocks):
            attention, mlp = block.attention, block.mlp
            layers = {"query": attention.query, "key": attention.key, "value": attention.value, "attention": attention}
            layers |= {"projection": attention.projection, "first": mlp.first, "second": mlp.second}
            for place, layer in layers.items():
                layer.lif.slopes = slopes_of(index, place)
        return loops.eval()

    return build
