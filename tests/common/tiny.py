"""Settings that make a run of any recipe for images take seconds."""

TINY = {
    "epochs": 1,
    "warmup_epochs": 0,
    "max_steps_per_epoch": 2,
    "train_images": 200,
    "test_images": 40,
    "batch_size": 16,
    "model.dim": 16,
    "model.heads": 2,
    "model.time_steps": 2,
    "threads": 1,
}
