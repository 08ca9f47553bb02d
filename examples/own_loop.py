"""SAGE in a training loop of one's own: one import and two lines (marked), on scikit-learn's handwritten digits."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from sage_snn import SAGE
from sage_snn.models import spikformer


def digits() -> DataLoader:
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1  # (1797, 1, 8, 8)
    return DataLoader(TensorDataset(images, torch.tensor(data.target)), batch_size=64, shuffle=True, drop_last=True)


def main() -> None:
    torch.manual_seed(0)
    loader = digits()
    model = spikformer(depth=2, dim=64, heads=8, time_steps=4, image_size=8, patch_size=2, in_channels=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sage = SAGE(model, warmup_steps=len(loader))  # line one

    for epoch in range(3):
        right = seen = 0
        for images, labels in loader:
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            sage.step()  # line two: slopes of the next forward pass
            right, seen = right + int((logits.argmax(1) == labels).sum()), seen + len(labels)
        slopes = ", ".join(f"{slope:.3f}" for slope in sage.slopes)
        print(f"epoch {epoch}: training accuracy {right / seen:.1%}, slopes {slopes}")

    print(sage)
    sage.remove()  # the plain network again


if __name__ == "__main__":
    main()
