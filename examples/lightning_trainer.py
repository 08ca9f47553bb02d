"""SAGE in Lightning: one callback, any policy."""

import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from sage_snn import SAGE
from sage_snn.integrations.lightning import PolicyCallback
from sage_snn.models import spikformer


class Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = spikformer(depth=2, dim=32, heads=4, time_steps=2, image_size=16)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        return F.cross_entropy(self.network(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Slopes(L.Callback):
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        slopes = {name: round(float(value), 4) for name, value in trainer.callback_metrics.items() if "slope" in name}
        print(f"{trainer.global_step} steps, {slopes}")


def main() -> None:
    L.seed_everything(0, verbose=False)
    data = TensorDataset(torch.randn(64, 3, 16, 16), torch.randint(0, 10, (64,)))
    policy = PolicyCallback(lambda model: SAGE(model, warmup_steps=2))
    trainer = L.Trainer(
        max_epochs=2,
        callbacks=[policy, Slopes()],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), DataLoader(data, batch_size=16))


if __name__ == "__main__":
    main()
