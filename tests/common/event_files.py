"""Small files in the formats of N-MNIST, CIFAR10-DVS and DVS128 Gesture, byte for byte as they are published.

Events are rows (t, x, y, p), as a reader gives them back.
"""

import struct

import numpy as np

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def events(seed, count=60, size=34):
    """Random ones, in the order of time."""
    draw = np.random.default_rng(seed)
    columns = (draw.integers(0, size, count), draw.integers(0, size, count), draw.integers(0, 2, count))
    return np.stack([np.sort(draw.integers(0, 100_000, count)), *columns], 1)


def write_atis(path, rows):
    """40 bits an event: x, y, polarity, and 23 bits of microseconds."""
    parts = [bytes((x, y, p << 7 | t >> 16, t >> 8 & 255, t & 255)) for t, x, y, p in rows.tolist()]
    path.write_bytes(b"".join(parts))


def write_aedat2(path, rows):
    """AER-DAT2.0 of a DVS128: text, then address and microseconds, big-endian; the sensor lies on its side."""
    head = b"#!AER-DAT2.0\r\n# Raw AE data are int32 address, int32 timestamp\r\n"
    parts = [struct.pack(">II", (127 - x) << 8 | (127 - y) << 1 | 1 - p, t) for t, x, y, p in rows.tolist()]
    path.write_bytes(head + b"".join(parts))


def write_aedat3(path, rows):
    """AER-DAT3.1: text, then packets of polarity events, here of at most 50, between packets of another kind."""
    content = b"#!AER-DAT3.1\r\n#Format: RAW\r\n#!END-HEADER\r\n"
    content += struct.pack("<HHIIIIII", 0, 0, 8, 4, 0, 1, 1, 1) + bytes(8)  # a special event
    for first in range(0, len(rows), 50):
        packet = rows[first : first + 50].tolist()
        content += struct.pack("<HHIIIIII", 1, 0, 8, 4, 0, len(packet), len(packet), len(packet))
        content += b"".join(struct.pack("<II", x << 17 | y << 2 | p << 1 | 1, t) for t, x, y, p in packet)
    path.write_bytes(content)


def n_mnist(folder, train=2, test=1, count=60):
    """So many recordings of every digit, of so many events, as Train.zip and Test.zip unpack."""
    for part, recordings in (("Train", train), ("Test", test)):
        for digit in range(10):
            (place := folder / part / str(digit)).mkdir(parents=True)
            for number in range(recordings):
                write_atis(place / f"{number:05}.bin", events((part == "Test", digit, number), count))
    return folder


def cifar10_dvs(folder, count=10):
    """So many recordings of every class, as the ten archives unpack."""
    for label, name in enumerate(CLASSES):
        (place := folder / name).mkdir(parents=True)
        for number in range(count):
            write_aedat2(place / f"cifar10_{name}_{number}.aedat", events((label, number), size=128))
    return folder


def dvs128_gesture(folder):
    """A recording for training and one for testing, with all eleven gestures, as DvsGesture.tar.gz unpacks."""
    (place := folder / "DvsGesture").mkdir(parents=True)
    for part, user in (("train", "user01_led"), ("test", "user24_led")):
        (place / f"trials_to_{part}.txt").write_text(f"{user}.aedat\n")
        write_aedat3(place / f"{user}.aedat", gesture_events(part))
        spans = [f"{gesture + 1},{gesture * 9000 + 500},{(gesture + 1) * 9000}" for gesture in range(11)]
        (place / f"{user}_labels.csv").write_text("\n".join(["class,startTime_usec,endTime_usec", *spans]) + "\n")
    return folder


def gesture_events(part):
    """Of that recording; gestures last from 500 to 9000, 9500 to 18000, and so on."""
    return events(("train", "test").index(part), 400, 128)
