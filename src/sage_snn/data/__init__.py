"""Images and events: what can be loaded, how it is augmented, and batches, equal to the bit wherever they are made.

Images are (B, C, H, W): batch, channels, height, width; events (T, B, C, H, W), time first. torchvision, timm,
scikit-learn and SpikingJelly's readers are imported when needed.
"""

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from .augmentation import Augmentation
    from .dataset import Data, Images, Labelled
    from .erasing import erased
    from .errors import DataError
    from .loader import Batch, Loader
    from .mixing import mix
    from .pipeline import describe, test_transform, train_transform
    from .recordings import Recordings
    from .sending import ahead
    from .sets import DATASETS, load_data

__all__ = [
    "DATASETS",
    "Augmentation",
    "Batch",
    "Data",
    "DataError",
    "Images",
    "Labelled",
    "Loader",
    "Recordings",
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
        ".dataset": ("Data", "Images", "Labelled"),
        ".erasing": ("erased",),
        ".errors": ("DataError",),
        ".loader": ("Batch", "Loader"),
        ".mixing": ("mix",),
        ".pipeline": ("describe", "test_transform", "train_transform"),
        ".recordings": ("Recordings",),
        ".sending": ("ahead",),
        ".sets": ("DATASETS", "load_data"),
    },
)
