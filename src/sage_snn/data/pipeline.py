"""The transforms of training and test images, built from an augmentation with timm."""

from typing import Any

from .augmentation import Augmentation
from .cutout import Cutout
from .dataset import Data
from .erasing import eraser
from .errors import DataError
from .event_transform import EventTransform
from .transform import Fit, Transform

_COLOUR = {"Color", "ColorIncreasing", "Desaturate"}  # these leave a grey image as it is


def train_transform(augmentation: Augmentation, data: Data) -> Transform | EventTransform:
    """Picture -> normalised tensor (C, size, size), in the order of timm's create_transform; mix and erase later.

    Of events: frames -> frames (T, 2, size, size).
    """
    augmentation.require_for(events=data.is_events)
    if data.is_events:
        return EventTransform(augmentation.flip, augmentation.event_operations)
    return _image_transform(augmentation, data)


def _image_transform(augmentation: Augmentation, data: Data) -> Transform:
    from timm.data.transforms import RandomResizedCropAndInterpolation
    from torchvision.transforms import AutoAugment, AutoAugmentPolicy, RandomCrop, RandomHorizontalFlip

    fit: Any = _fit(data.size, data.size, augmentation.interpolation)
    if augmentation.crop_scale:
        fit = RandomResizedCropAndInterpolation(
            data.size, scale=augmentation.crop_scale, interpolation=augmentation.interpolation
        )
    steps: list[Any] = []
    if augmentation.shift:
        if augmentation.shift >= data.size:
            raise DataError(f"shift is {augmentation.shift} pixels, the images have {data.size}; shift them by less")
        steps.append(RandomCrop(data.size, padding=augmentation.shift, padding_mode="reflect"))
    if augmentation.flip:
        steps.append(RandomHorizontalFlip(augmentation.flip))
    if augmentation.rand_augment:
        steps.append(_rand_augment(augmentation, data))
    if augmentation.auto_augment:
        steps.append(AutoAugment(AutoAugmentPolicy.CIFAR10, fill=list(_colour(data))))
    if augmentation.cutout:
        steps.append(Cutout(augmentation.cutout, _colour(data)))
    return Transform(fit, tuple(steps), data.mean, data.std)


def test_transform(data: Data) -> Transform | EventTransform:
    """The same for evaluation."""
    if data.is_events:
        return EventTransform()
    return plain_transform(data.size, data.mean, data.std, in_files=not hasattr(data.test.pixels, "shape"))


def plain_transform(size: int, mean: tuple[float, ...], std: tuple[float, ...], *, in_files: bool) -> Transform:
    """Nothing random: of photographs in files at 224 px and more the middle 0.875, else the whole image."""
    kept = 0.875 if size >= 224 and in_files else 1.0
    return Transform(_fit(size, int(size / kept), "bicubic"), (), mean, std)


def describe(augmentation: Augmentation, data: Data) -> list[str]:
    """What is really applied to the training images, read from the transform as it was built."""
    transform = train_transform(augmentation, data)
    lines = transform.in_words() if isinstance(transform, EventTransform) else _steps(transform, augmentation)
    until = "" if augmentation.mixup_off_epoch is None else f" before epoch {augmentation.mixup_off_epoch}"
    for name in ("mixup", "cutmix"):
        if alpha := getattr(augmentation, name):
            lines.append(f"{name} {alpha} with probability {augmentation.mixup_probability}{until}")
    lines += [repr(eraser(augmentation.erasing))] if augmentation.erasing else []
    return lines + [f"label smoothing {augmentation.smoothing}"] * (augmentation.smoothing > 0)


def _steps(transform: Transform, augmentation: Augmentation) -> list[str]:
    fit = transform.fit
    lines = [f"resize to {fit.size} px where needed" if isinstance(fit, Fit) else repr(fit)]
    lines += [_in_words(step, augmentation) for step in transform.steps]
    return [*lines, f"normalise by mean {transform.mean}, std {transform.std}"]


def _in_words(step: Any, augmentation: Augmentation) -> str:
    kind = type(step).__name__
    if kind == "RandAugment":
        names, chance = ", ".join(operation.name for operation in step.ops), step.ops[0].prob
        return f"RandAugment {augmentation.rand_augment}: {step.num_layers} of {names}, each with probability {chance}"
    if kind == "RandomCrop":
        return f"shift by up to {augmentation.shift} px, borders reflected"
    return repr(step)


def _fit(size: int, scaled: int, interpolation: str) -> Fit:
    from timm.data.transforms import str_to_interp_mode
    from torchvision.transforms import CenterCrop, Compose, Resize

    mode: Any = str_to_interp_mode("bicubic" if interpolation == "random" else interpolation)
    return Fit(size, Compose([Resize(scaled, mode), CenterCrop(size)]), exact=scaled == size)


def _colour(data: Data) -> tuple[int, ...]:
    """The mean, as pixels have it."""
    return tuple(min(255, round(255 * x)) for x in data.mean)


def _rand_augment(augmentation: Augmentation, data: Data) -> Any:
    from timm.data.auto_augment import rand_augment_transform
    from timm.data.transforms import str_to_pil_interp

    colour = _colour(data)
    hparams: dict[str, Any] = {"translate_const": int(data.size * 0.45), "img_mean": colour}
    if data.channels == 1:
        hparams["img_mean"] = colour[0]  # Pillow fills a grey image with a number
    if augmentation.interpolation != "random":
        hparams["interpolation"] = str_to_pil_interp(augmentation.interpolation)
    operations = None if augmentation.operations is None else list(augmentation.operations)
    built = rand_augment_transform(augmentation.rand_augment or "", hparams, operations)
    names = [operation.name for operation in built.ops]
    if data.channels == 1 and _COLOUR.intersection(names):
        useful = [name for name in names if name not in _COLOUR]
        raise DataError(
            f"{data.name} has grey images, on which {', '.join(sorted(_COLOUR.intersection(names)))} of RandAugment "
            f"would do nothing; name the operations: operations={useful}"
        )
    return built
