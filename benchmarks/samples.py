"""Small data sets in their real formats, and one of their files mutated."""

import gzip
import os
import random
import struct
import sys
from pathlib import Path

from mutations import mutated

EVENTS = ("n-mnist", "cifar10-dvs", "dvs128-gesture")
sys.path.append(str(Path(__file__).parents[1] / "tests" / "common"))  # which writes recordings


def damaged(source: Path, folder: Path, draw: random.Random) -> Path:
    """Links but for one file, which is mutated: a copy of all of them would take longer than to read them."""
    files = [path for path in sorted(source.rglob("*")) if path.is_file() and "tensorboard" not in str(path)]
    chosen = draw.choice(files)
    for path in files:
        mine = folder / path.relative_to(source)
        mine.parent.mkdir(parents=True, exist_ok=True)
        if path != chosen:
            os.link(path, mine)
        elif path.suffix == ".gz" and draw.random() < 0.5:
            mine.write_bytes(gzip.compress(mutated(gzip.decompress(path.read_bytes()), draw), 1))
        else:
            mine.write_bytes(mutated(path.read_bytes(), draw))
    return folder


def leads_out(folder: Path, scratch: Path, draw: random.Random) -> None:
    """A line that names a recording elsewhere, beside which lies what would be written over."""
    for ending in (".aedat", "_labels.csv"):
        (scratch / f"mine{ending}").write_bytes((folder / f"user01_led{ending}").read_bytes())
    for number in range(3):
        (scratch / f"mine_{number}.npz").write_bytes(b"of the user")
    line = draw.choice((f"{scratch}/mine.aedat", "../../mine.aedat", "x/../../../mine.aedat", "..\\..\\mine.aedat"))
    path = folder / draw.choice(("trials_to_train.txt", "trials_to_test.txt"))
    content = path.read_bytes() if path.is_file() else b""
    path.unlink(missing_ok=True)  # it is a link to what all cases share
    path.write_bytes(content + b"\n" + line.encode() + b"\n")


def write_idx(folder: Path) -> None:
    """Fashion-MNIST's four files with a few images, two of them packed."""
    import numpy as np

    folder.mkdir(exist_ok=True)
    for part, count in (("train", 30), ("t10k", 10)):
        pixels = np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        for name, array in (("images-idx3", pixels), ("labels-idx1", np.arange(count, dtype=np.uint8) % 10)):
            content = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
            is_packed = (part == "train") == (array.ndim == 3)
            path = folder / f"{part}-{name}-ubyte{'.gz' if is_packed else ''}"
            path.write_bytes(gzip.compress(content) if is_packed else content)


def write_recordings(folder: Path) -> None:
    """The three data sets of events as they unpack, and as they are after their first use."""
    from event_files import (
        cifar10_dvs,
        dvs128_gesture,
        n_mnist,
    )

    from sage_snn.data import load_data

    write = {
        "n-mnist": lambda place: n_mnist(place, train=1, count=20),
        "cifar10-dvs": cifar10_dvs,
        "dvs128-gesture": dvs128_gesture,
    }
    for name in EVENTS:
        for state in ("unpacked", "ready"):
            if not (place := folder / name / state).is_dir():
                write[name](place)
        load_data(name, folder / name / "ready", time_steps=2)
