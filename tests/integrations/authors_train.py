"""A training script with the structure and the options of the authors' train.py, before SAGE; written anew.

Lines that docs/adopt.md names are written as the authors write them. Data is random and no GPU is asked for.
"""
# fmt: off
# ruff: noqa: F401, F403, F405, F811, I001

import argparse
import logging
import os
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from spikingjelly.clock_driven import functional

import torch
import torch.nn as nn
import yaml
from torch.nn.parallel import DistributedDataParallel as NativeDDP

from timm.data import Mixup, resolve_data_config
from timm.models import create_model, safe_model_name, resume_checkpoint, load_checkpoint, \
    convert_splitbn_model, model_parameters
from timm.utils import *
from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2, optimizer_kwargs
from timm.scheduler import create_scheduler
from timm.utils import ApexScaler, NativeScaler
import model

_logger = logging.getLogger("train")

config_parser = argparse.ArgumentParser(add_help=False)
config_parser.add_argument("-c", "--config", default="cifar10.yml")
parser = argparse.ArgumentParser()
parser.add_argument("--model", default="spikformer")
parser.add_argument("-T", "--time-step", type=int, default=4)
parser.add_argument("-L", "--layer", type=int, default=4)
for name in ("num-classes", "img-size", "dim", "num_heads", "patch-size", "mlp-ratio", "start-epoch"):
    parser.add_argument(f"--{name}", type=int, default=None)
for name, default in {"batch-size": 32, "val-batch-size": 16, "epochs": 200, "warmup-epochs": 3, "cooldown-epochs": 10,
                      "seed": 42, "log-interval": 1000, "checkpoint-hist": 10, "mixup-off-epoch": 0}.items():
    parser.add_argument(f"--{name}", type=int, default=default)
for name, default in {"lr": 0.01, "momentum": 0.9, "weight-decay": 0.0001, "warmup-lr": 0.0001, "min-lr": 1e-5,
                      "smoothing": 0.1, "mixup": 0.0, "clip-grad": None, "opt-eps": None,
                      "model-ema-decay": 0.9998}.items():
    parser.add_argument(f"--{name}", type=float, default=default)
for name, default in {"opt": "sgd", "sched": "step", "clip-mode": "norm", "eval-metric": "top1", "resume": "",
                      "output": "", "experiment": ""}.items():
    parser.add_argument(f"--{name}", default=default)
for name in ("amp", "model-ema", "split-bn"):
    parser.add_argument(f"--{name}", action="store_true")
parser.add_argument("--opt-betas", type=float, nargs="+", default=None)
parser.add_argument("--local_rank", default=0, type=int)


def _parse_args():
    """Options of the YAML file are defaults of those of the command line."""
    named, rest = config_parser.parse_known_args()
    with open(named.config) as file:
        parser.set_defaults(**yaml.safe_load(file))
    return parser.parse_args(rest)


def create_loader(batch_size, input_size, classes, batches=2):
    """Random images in the place of a data set, the same in every epoch."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batches, batch_size, *input_size, generator=generator)
    return [(part, torch.arange(batch_size) % classes) for part in images]


def main():
    setup_default_logging()
    args = _parse_args()
    args.distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
    args.device = "cuda" if torch.cuda.is_available() else "cpu"
    args.rank = 0
    if args.distributed:
        torch.distributed.init_process_group(backend="gloo", init_method="env://")
        args.rank = torch.distributed.get_rank()

    random_seed(args.seed, args.rank)
    model = create_model(
        "spikformer",
        pretrained=False,
        drop_rate=0., drop_path_rate=0., drop_block_rate=None,
        img_size_h=args.img_size, img_size_w=args.img_size,
        patch_size=args.patch_size, embed_dims=args.dim, num_heads=args.num_heads, mlp_ratios=args.mlp_ratio,
        in_channels=3, num_classes=args.num_classes, qkv_bias=False,
        depths=args.layer, sr_ratios=1, T=args.time_step,
    )
    data_config = resolve_data_config(vars(args), model=model, verbose=False)
    if args.split_bn:
        model = convert_splitbn_model(model, 2)
    model.to(args.device)

    optimizer = create_optimizer_v2(model, **optimizer_kwargs(cfg=args))
    amp_autocast, loss_scaler = suppress, None
    if args.amp:
        amp_autocast, loss_scaler = partial(torch.autocast, args.device), NativeScaler()

    resume_epoch = None
    if args.resume:
        resume_epoch = resume_checkpoint(model, args.resume, optimizer=optimizer, loss_scaler=loss_scaler)

    model_ema = None
    if args.model_ema:
        model_ema = ModelEmaV2(model, decay=args.model_ema_decay)
        if args.resume:
            load_checkpoint(model_ema.module, args.resume, use_ema=True)
    if args.distributed:
        model = NativeDDP(model, find_unused_parameters=True)

    lr_scheduler, num_epochs = create_scheduler(args, optimizer)
    start_epoch = args.start_epoch if args.start_epoch is not None else resume_epoch or 0
    if start_epoch > 0:
        lr_scheduler.step(start_epoch)

    loader_train = create_loader(args.batch_size, data_config["input_size"], args.num_classes)
    loader_eval = create_loader(args.val_batch_size, data_config["input_size"], args.num_classes)
    mixup_fn, train_loss_fn = None, LabelSmoothingCrossEntropy(smoothing=args.smoothing)
    if args.mixup > 0:
        mixup_fn = Mixup(mixup_alpha=args.mixup, label_smoothing=args.smoothing, num_classes=args.num_classes)
        train_loss_fn = SoftTargetCrossEntropy()
    validate_loss_fn = nn.CrossEntropyLoss()

    eval_metric = args.eval_metric
    best_metric = saver = output_dir = None
    if args.rank == 0:
        output_dir = get_outdir(args.output or "output", args.experiment or safe_model_name(args.model))
        folders = {"checkpoint_dir": output_dir, "recovery_dir": output_dir}
        saver = CheckpointSaver(
            model, optimizer, args, model_ema, loss_scaler, max_history=args.checkpoint_hist, **folders)

    if True:  # the authors' try, for its indentation
        for epoch in range(start_epoch, num_epochs):
            train_metrics = train_one_epoch(
                epoch, model, loader_train, optimizer, train_loss_fn, args,
                lr_scheduler=lr_scheduler, amp_autocast=amp_autocast, loss_scaler=loss_scaler,
                model_ema=model_ema, mixup_fn=mixup_fn)
            eval_metrics = validate(model, loader_eval, validate_loss_fn, args, amp_autocast=amp_autocast)
            lr_scheduler.step(epoch + 1, eval_metrics[eval_metric])
            if output_dir is not None:
                summary = os.path.join(output_dir, "summary.csv")
                update_summary(epoch, train_metrics, eval_metrics, summary, write_header=best_metric is None)
            if saver is not None:
                save_metric = eval_metrics[eval_metric]
                best_metric, best_epoch = saver.save_checkpoint(epoch, metric=save_metric)
                _logger.info(f"best so far: {best_metric} in epoch {best_epoch}")


def train_one_epoch(
        epoch, model, loader, optimizer, loss_fn, args,
        lr_scheduler=None, amp_autocast=suppress, loss_scaler=None, model_ema=None, mixup_fn=None):
    losses = AverageMeter()
    model.train()
    for batch_idx, (input, target) in enumerate(loader):
        input, target = input.to(args.device), target.to(args.device)
        if mixup_fn is not None:
            input, target = mixup_fn(input, target)
        with amp_autocast():
            output = model(input)
            loss = loss_fn(output, target)
        losses.update(loss.item(), input.size(0))

        optimizer.zero_grad()
        if loss_scaler is not None:
            clipped = model_parameters(model)
            loss_scaler(loss, optimizer, args.clip_grad, args.clip_mode, clipped)
        else:
            loss.backward()
            optimizer.step()

        functional.reset_net(model)

        if model_ema is not None:
            model_ema.update(model)
        lr_scheduler.step_update(num_updates=epoch * len(loader) + batch_idx + 1, metric=losses.avg)
    return OrderedDict([("loss", losses.avg)])


def validate(model, loader, loss_fn, args, amp_autocast=suppress):
    losses, top1 = AverageMeter(), AverageMeter()
    model.eval()
    with torch.no_grad():
        for input, target in loader:
            input, target = input.to(args.device), target.to(args.device)
            with amp_autocast():
                output = model(input)
            loss = loss_fn(output, target)
            functional.reset_net(model)
            losses.update(loss.item(), input.size(0))
            top1.update(accuracy(output, target, topk=(1, 5))[0].item(), output.size(0))
    return OrderedDict([("loss", losses.avg), ("top1", top1.avg)])


if __name__ == "__main__":
    main()
