"""SAGE on networks we did not write: SpikingJelly's, found by structure, and one described by hand."""

import torch
import torch.nn.functional as F
from spikingjelly.activation_based import functional, neuron
from spikingjelly.activation_based.model import SpikeDrivenTransformer
from torch import Tensor, nn

from sage_snn import SAGE, Block


class Mixer(nn.Module):
    """A block with names that nobody could guess; x is (T, B, N, C)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ask, self.offer, self.out = (nn.Linear(width, width) for _ in range(3))
        self.asks, self.offers, self.fires = (neuron.LIFNode(step_mode="m", detach_reset=True) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.asks(self.ask(x)), self.offers(self.offer(x))
        return x + self.fires(self.out(q @ k.transpose(-1, -2) @ x * 0.125))


def train(model: nn.Module, sage: SAGE, images: Tensor, labels: Tensor) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(6):
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        sage.step()
        functional.reset_net(model)  # as ever with SpikingJelly's nodes
    print(sage)


def main() -> None:
    torch.manual_seed(0)
    labels = torch.randint(0, 10, (8,))
    found = SpikeDrivenTransformer(T=2, embed_dims=64, num_heads=4, depths=2, num_classes=10, pooling_stat="0011")
    train(found, SAGE(found, warmup_steps=2), torch.randn(8, 3, 16, 16), labels)

    layers = [Mixer(32), Mixer(32)]
    described = nn.Sequential(*layers, nn.Flatten(2), nn.Linear(16 * 32, 10))
    blocks = [Block([m.asks, m.offers, m.fires], m.asks, m.offers, heads=4, layout="TBNC") for m in layers]
    logits = nn.Sequential(described, Mean())
    train(logits, SAGE(logits, blocks=blocks, warmup_steps=2), 2 * torch.randn(2, 8, 16, 32), labels)


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(0)


if __name__ == "__main__":
    main()
