import pytest
import torch
from PIL import Image

from sage_snn.data import DataError, Loader, load_data
from sage_snn.data import test_transform as evaluation_transform

WNIDS = ("n01440764", "n01443537", "n02099601")


def paint(path, colour, size=(20, 16)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def folder(tmp_path):
    for label, wnid in enumerate(WNIDS):
        for i in range(8):
            paint(tmp_path / "train" / wnid / f"{wnid}_{i}.JPEG", (label, i, 0))
        for i in range(2):
            paint(tmp_path / "val" / wnid / f"ILSVRC2012_val_{label}{i}.JPEG", (label, i, 0))
    return tmp_path


@pytest.fixture
def tiny(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    rows = []
    for label, wnid in enumerate(WNIDS):
        for i in range(4):
            paint(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", (label, 0, 0), (64, 64))
        paint(root / "val" / "images" / f"val_{label}.JPEG", (label, 0, 0), (64, 64))
        rows.append(f"val_{label}.JPEG\t{wnid}\t0\t0\t62\t62")
    (root / "val" / "val_annotations.txt").write_text("\n".join(reversed(rows)) + "\n")
    (root / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    return root


def names(images):
    return [path.name for path in images.pixels]


def test_the_listed_classes_are_read_with_a_cap_on_each(folder, tmp_path):
    listing = tmp_path / "classes.txt"
    listing.write_text(f"# two of three\n{WNIDS[2]}  # golden retriever\n\n{WNIDS[0]}\n")
    data = load_data("imagenet200", folder, classes_file=listing, per_class=5)
    assert data.classes == (WNIDS[2], WNIDS[0])
    assert data.train.labels.tolist() == [0] * 5 + [1] * 5
    assert data.test.labels.tolist() == [0, 0, 1, 1]
    assert all(name.startswith(data.classes[y]) for name, y in zip(names(data.train), data.train.labels, strict=True))
    assert (data.size, data.channels) == (224, 3)


def test_a_class_keeps_its_pictures_whatever_else_is_listed(folder, tmp_path):
    listing = tmp_path / "classes.txt"
    listing.write_text(WNIDS[1])
    alone = load_data("imagenet200", folder, classes_file=listing, per_class=3)
    together = load_data("imagenet200", folder, per_class=3)
    assert names(alone.train) == names(together.train)[3:6]
    assert names(together.train) == names(load_data("imagenet200", folder, per_class=3).train)


def test_pictures_become_the_centre_at_224_px(folder):
    data = load_data("imagenet200", folder)
    transform = evaluation_transform(data)
    batch = next(Loader(data.test, transform, 2).epoch(0))
    assert batch.images.shape == (2, 3, 224, 224)
    assert not transform.is_plain_for(torch.zeros(1, 3, 224, 224, dtype=torch.uint8))  # 256 px, then the centre


def test_more_than_200_classes_need_a_list(folder):
    for i in range(200):
        (folder / "train" / f"n9{i:07}").mkdir()
    with pytest.raises(DataError, match="has 203 classes; name those to use in a text file"):
        load_data("imagenet200", folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n01440765\n", r"names n01440765 \(1 such\), which .*train does not have; did you mean n01440764\?"),
        ("n01440764\nn01440764\n", "names n01440764 twice; name every class once"),
        ("# nothing\n", "names no class"),
    ],
)
def test_a_wrong_list_of_classes_is_explained(folder, tmp_path, text, message):
    listing = tmp_path / "classes.txt"
    listing.write_text(text)
    with pytest.raises(DataError, match=message):
        load_data("imagenet200", folder, classes_file=listing)


def test_a_list_that_is_not_there_or_no_text_is_named(folder, tmp_path):
    with pytest.raises(DataError, match=r"absent\.txt is not there; it should name a class per line"):
        load_data("imagenet200", folder, classes_file=tmp_path / "absent.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read as text"):
        load_data("imagenet200", folder, classes_file=tmp_path / "binary.txt")


def test_a_flat_validation_folder_is_recognised(folder):
    for wnid in WNIDS:
        for path in (folder / "val" / wnid).iterdir():
            path.rename(folder / "val" / path.name)
        (folder / "val" / wnid).rmdir()
    with pytest.raises(DataError, match=r"val has no class folders; sort its pictures into val/<class>/"):
        load_data("imagenet200", folder)


def test_empty_and_missing_class_folders_are_named(folder):
    for path in (folder / "val" / WNIDS[1]).iterdir():
        path.unlink()
    with pytest.raises(DataError, match=rf"val.{WNIDS[1]} has no picture"):
        load_data("imagenet200", folder)
    (folder / "val" / WNIDS[1]).rmdir()
    with pytest.raises(DataError, match=rf"val.{WNIDS[1]} is not there; expected train/<class>"):
        load_data("imagenet200", folder)


def test_a_cap_of_none_is_refused(folder):
    with pytest.raises(DataError, match="per_class must be at least 1, not 0"):
        load_data("imagenet200", folder, per_class=0)


@pytest.mark.parametrize("inner", [True, False])
def test_tiny_imagenet_is_read_as_it_unzips(tiny, inner):
    data = load_data("tiny-imagenet200", tiny if inner else tiny.parent)
    assert (len(data.train), len(data.test), data.classes, data.size) == (12, 3, WNIDS, 64)
    assert data.test.labels.tolist() == [2, 1, 0]
    assert names(data.test) == ["val_2.JPEG", "val_1.JPEG", "val_0.JPEG"]
    assert next(Loader(data.test, evaluation_transform(data), 3).epoch(0)).images.shape == (3, 3, 64, 64)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("val_9.JPEG\tn01440764\t0\t0\t1\t1\n", r"line 4 \('val_9.JPEG n01440764', 1 such lines\) does not name a pic"),
        ("val_1.JPEG\tn99999999\t0\t0\t1\t1\n", r"line 4 \('val_1.JPEG n99999999'"),
        ("val_1.JPEG\n", r"line 4 \('val_1.JPEG'"),
        ("val_1.JPEG\tn01443537\t0\t0\t1\t1\n", "names 4 pictures, .* has 3; unzip it again"),
    ],
)
def test_wrong_annotations_are_named_by_their_line(tiny, extra, message):
    with (tiny / "val" / "val_annotations.txt").open("a") as table:
        table.write(extra)
    with pytest.raises(DataError, match=message):
        load_data("tiny-imagenet200", tiny)


@pytest.mark.parametrize("name", ["wnids.txt", "val/val_annotations.txt"])
def test_missing_tables_of_tiny_imagenet_are_named(tiny, name):
    (tiny / name).unlink()
    with pytest.raises(DataError, match=rf"{name.rpartition('/')[2]} is not there; .* tiny-imagenet-200.zip"):
        load_data("tiny-imagenet200", tiny)


def test_classes_of_tiny_imagenet_have_words_where_the_table_is_there(tiny):
    crane = [f"{WNIDS[0]}\tcrane, a bird", f"{WNIDS[1]}\ttench, Tinca tinca", f"{WNIDS[2]}\tcrane", "n00000001\tother"]
    (tiny / "words.txt").write_text("\n".join(crane))
    data = load_data("tiny-imagenet200", tiny)
    assert data.classes == (f"crane ({WNIDS[0]})", "tench", f"crane ({WNIDS[2]})")
    assert data.test.labels.tolist() == [2, 1, 0]
    (tiny / "words.txt").write_text(f"{WNIDS[1]}\ttench\n")
    assert load_data("tiny-imagenet200", tiny).classes == (WNIDS[0], "tench", WNIDS[2])
