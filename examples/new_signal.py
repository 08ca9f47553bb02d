"""A signal and a law of one's own: firing-rate disagreement of the heads, and a law without a dead zone."""

import torch
import torch.nn.functional as F
from torch import Tensor

from sage_snn import SAGE, HeadEntropy
from sage_snn.models import spikformer


def query_rate(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """How often the query neurons of each head fire; q is (T, B, H, N, K)."""
    return q.double().mean(dim=(0, 1, 3, 4))


class Linear:
    """Slope grows in proportion to the score and is kept in bounds; `base` tells what slope 1x is."""

    base = 4.0

    def __call__(self, z: Tensor) -> Tensor:
        return (self.base + 0.2 * z).clamp(2.0, 6.0)


def main() -> None:
    for name, signal in {"entropy": HeadEntropy(), "firing rate of queries": query_rate}.items():
        torch.manual_seed(0)
        model = spikformer(depth=3, dim=64, heads=4, time_steps=2, image_size=16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        images, labels = torch.randn(16, 3, 16, 16), torch.randint(0, 10, (16,))
        with SAGE(model, warmup_steps=2, signal=signal, law=Linear()) as sage:
            for _ in range(8):
                F.cross_entropy(model(images), labels).backward()
                optimizer.step()
                optimizer.zero_grad()
                sage.step()
            print(f"{name}: dispersion {sage.dispersion.numpy().round(5)}, slopes {sage.slopes.numpy().round(3)}")


if __name__ == "__main__":
    main()
