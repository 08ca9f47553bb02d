"""Our Spikformer with neurons in plain torch, each run by itself: what finer slopes are compared with."""

import torch
from torch import nn


class LoopLIF(nn.Module):
    """LIF neurons with hard reset; `slopes` broadcasts over (T, B, C, N). Each run of equal slopes fires by itself."""

    def __init__(self, tau=2.0, v_threshold=1.0, **unused):
        super().__init__()
        self.tau, self.v_threshold, self.slopes = tau, v_threshold, torch.full((1, 1, 1, 1), 4.0)

    def forward(self, x, fired=False):
        return torch.stack([self.image(x[:, b], self.slopes[:, b if len(self.slopes[0]) > 1 else 0])
                            for b in range(x.shape[1])], 1)  # fmt: skip

    def image(self, x, slopes):
        """Spikes (T, C, N) of one image, slopes (t, c, n)."""
        by_channel = slopes.shape[1] > 1
        parts = x.unbind(1) if by_channel else x.unbind(2)
        spikes = []
        for i, part in enumerate(parts):
            of_part = slopes[:, min(i, slopes.shape[1] - 1), 0] if by_channel else slopes[:, 0, min(i, slopes.shape[2] - 1)]
            spikes.append(self.part(part, of_part))
        return torch.stack(spikes, 1 if by_channel else 2)

    def part(self, x, slopes):
        """Spikes (T, n) of neurons with one slope per time step at most."""
        v, spikes = torch.zeros_like(x[0]), []
        for t, current in enumerate(x):
            charged = v + (current - v) / self.tau
            smooth = torch.sigmoid(float(slopes[min(t, len(slopes) - 1)]) * (charged - self.v_threshold))
            spike = (charged >= self.v_threshold).to(x.dtype) + smooth - smooth.detach()
            v = (1 - spike.detach()) * charged
            spikes.append(spike)
        return torch.stack(spikes)


def set_slopes(block, of_node):
    """Give the nodes of a block of our Spikformer their slopes, by a function of the node's place in it."""
    attention, mlp = block.attention, block.mlp
    nodes = {"query": attention.query.lif, "key": attention.key.lif, "value": attention.value.lif,
             "attention": attention.lif, "projection": attention.projection.lif,
             "first": mlp.first.lif, "second": mlp.second.lif}  # fmt: skip
    for place, node in nodes.items():
        node.slopes = of_node(place)
