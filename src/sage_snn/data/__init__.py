"""Image data: what can be loaded, how it is augmented, and batches that are the same to the bit wherever they are made.

Images are (B, C, H, W): batch, channels, height, width. torchvision, timm and scikit-learn are imported when needed.
"""

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from .augmentation import Augmentation
    from .dataset import Data, Images
    from .erasing import erased
    from .errors import DataError
    from .loader import Batch, Loader
    from .mixing import mix
    from .pipeline import describe, test_transform, train_transform
    from .sending import ahead
    from .sets import DATASETS, load_data

__all__ = [
    "DATASETS",
    "Augmentation",
    "Batch",
    "Data",
    "DataError",
    "Images",
    "Loader",
    "ahead",
    "describe",
    "erased",
    "load_data",
    "mix",
    "test_transform",
    "train_transform",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        ".augmentation": ("Augmentation",),
        ".dataset": ("Data", "Images"),
        ".erasing": ("erased",),
        ".errors": ("DataError",),
        ".loader": ("Batch", "Loader"),
        ".mixing": ("mix",),
        ".pipeline": ("describe", "test_transform", "train_transform"),
        ".sending": ("ahead",),
        ".sets": ("DATASETS", "load_data"),
    },
)
