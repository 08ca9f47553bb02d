import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import EpsImagePlugin, Image

from sage_snn.data import Data, DataError, Images
from sage_snn.data.dataset import moments, split, stratified


def images(labels, channels=1, size=4):
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (len(labels), channels, size, size), generator=generator, dtype=torch.uint8)
    return Images(pixels, torch.tensor(labels, dtype=torch.int64))


def data(train, test, classes=2, channels=1):
    ones = (1.0,) * channels
    return Data("toy", train, test, tuple(map(str, range(classes))), channels=channels, size=4, mean=ones, std=ones)


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_a_picture_has_the_pixels_of_the_set(channels, mode):
    some = images([0, 1], channels)
    picture = some.picture(1)
    assert picture.mode == mode
    for x, y in [(0, 0), (3, 1), (2, 3)]:
        value = picture.getpixel((x, y))
        assert (value if channels == 3 else (value,)) == tuple(some.pixels[1, :, y, x].tolist())


def test_files_are_opened_as_colour_when_they_are_asked_for(tmp_path):
    path = tmp_path / "grey.png"
    some = Images([path], torch.tensor([0]))
    Image.new("L", (5, 4), 7).save(path)
    assert (some.picture(0).mode, some.picture(0).size, some.picture(0).getpixel((0, 0))) == ("RGB", (5, 4), (7, 7, 7))


def test_a_torn_picture_is_named(tmp_path):
    path = tmp_path / "torn.png"
    Image.effect_noise((64, 64), 50).save(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=r"torn\.png cannot be read as a picture .* copy that file again"):
        Images([path], torch.tensor([0])).picture(0)
    path.unlink()
    with pytest.raises(DataError, match=r"torn\.png is gone"):
        Images([path], torch.tensor([0])).picture(0)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data())
@settings(deadline=None, max_examples=60)
def test_a_stratified_choice_gives_every_class_its_share_to_within_one(labels, draw):
    n, seed = draw.draw(st.integers(1, len(labels))), draw.draw(st.integers(0, 5))
    labels = torch.tensor(labels)
    chosen = stratified(labels, n, seed)
    assert len(set(chosen.tolist())) == n
    assert chosen.tolist() == sorted(chosen.tolist())
    assert chosen.equal(stratified(labels, n, seed))
    for label in labels.unique():
        share = n * int((labels == label).sum()) / len(labels)
        assert abs(int((labels[chosen] == label).sum()) - share) < 1


def test_a_subset_keeps_the_pairs_of_image_and_label_and_depends_on_the_seed():
    some = images([i % 3 for i in range(30)])
    part = some.subset(9, seed=4)
    assert torch.bincount(part.labels).tolist() == [3, 3, 3]
    everything = {(bytes(p.numpy()), int(y)) for p, y in zip(some.pixels, some.labels, strict=True)}
    assert all((bytes(p.numpy()), int(y)) in everything for p, y in zip(part.pixels, part.labels, strict=True))
    assert not part.pixels.equal(some.subset(9, seed=5).pixels)
    assert some.subset(30, seed=0) is some


@given(st.lists(st.integers(0, 4), min_size=2, max_size=60), st.data())
@settings(deadline=None, max_examples=60)
def test_subsets_of_two_numbers_share_no_image_and_the_first_is_the_usual_one(labels, draw):
    n, seed = draw.draw(st.integers(1, len(labels))), draw.draw(st.integers(0, 5))
    labels, seen = torch.tensor(labels), []
    with pytest.raises(DataError, match=rf"there is no subset {len(labels) + 1} of {n} images: {len(labels)} hold \d+"):
        stratified(labels, n, seed, len(labels) + 1)
    for number in range(len(labels)):
        try:
            chosen = stratified(labels, n, seed, number).tolist()
        except DataError:
            break
        assert len(chosen) == n
        assert not set(seen) & set(chosen)
        seen += chosen
    assert seen[:n] == stratified(labels, n, seed).tolist()


def test_a_subset_of_files_keeps_their_labels(tmp_path):
    paths = [tmp_path / f"{i}.png" for i in range(10)]
    part = Images(paths, torch.arange(10) % 2).subset(4, seed=0)
    assert [int(path.stem) % 2 for path in part.pixels] == part.labels.tolist()


def test_a_subset_larger_than_the_set_is_refused():
    with pytest.raises(DataError, match="cannot choose 5 of 3 images; ask for 1 to 3"):
        images([0, 1, 1]).subset(5, seed=0)


def test_a_split_loses_no_image_and_takes_a_fifth_of_every_class():
    labels = [0] * 50 + [1] * 20
    some = images(labels)
    train, test = split(some)
    assert torch.bincount(train.labels).tolist() == [40, 16]
    assert torch.bincount(test.labels).tolist() == [10, 4]
    together = sorted(bytes(p.numpy()) for part in (train, test) for p in part.pixels)
    assert together == sorted(bytes(p.numpy()) for p in some.pixels)


def test_moments_are_those_of_the_pixels():
    pixels = images([0] * 20, channels=3, size=8).pixels
    scaled = pixels.double() / 255
    mean, std = moments(pixels)
    torch.testing.assert_close(torch.tensor(mean).double(), scaled.mean((0, 2, 3)))
    torch.testing.assert_close(torch.tensor(std).double(), scaled.std((0, 2, 3), correction=0))


def test_a_constant_channel_can_be_normalised():
    assert moments(torch.full((2, 1, 3, 3), 51, dtype=torch.uint8)) == ((pytest.approx(0.2),), (1.0,))


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [
        (torch.zeros(2, 1, 4, 4), torch.tensor([0, 1]), r"pixels must be uint8 .* not torch.float32"),
        (torch.zeros(2, 2, 4, 4, dtype=torch.uint8), torch.tensor([0, 1]), r"1 or 3"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0.0, 1]), r"labels must be int64"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0]), r"2 images but 1 labels"),
    ],
)
def test_images_that_are_none_are_refused(pixels, labels, message):
    with pytest.raises(DataError, match=message):
        Images(pixels, labels)


@pytest.mark.parametrize("label", [-1, 2])
def test_labels_outside_the_classes_are_refused(label):
    with pytest.raises(DataError, match=rf"label {label} of test image 1 is outside 0\.\.1 \(1 such\)"):
        data(images([0, 1]), images([0, label]))


def test_empty_parts_and_other_channel_counts_are_refused():
    with pytest.raises(DataError, match="there is no test image"):
        data(images([0, 1]), images([]))
    with pytest.raises(DataError, match="test images have 3 channels, expected 1"):
        data(images([0, 1]), images([0, 1], channels=3))


def test_a_file_that_is_no_photograph_does_not_reach_an_interpreter(tmp_path, monkeypatch):
    """Pillow goes by the content of a file, and hands PostScript to Ghostscript whatever the file is called."""
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *args, **options: pytest.fail("an interpreter runs"))
    Image.new("RGB", (8, 8)).save(tmp_path / "photo.jpg", format="EPS")
    with pytest.raises(DataError, match=r"photo\.jpg cannot be read as a picture"):
        Images([tmp_path / "photo.jpg"], torch.tensor([0])).picture(0)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF"])
def test_pictures_are_known_by_their_content(tmp_path, kind):
    Image.new("RGB", (8, 8)).save(tmp_path / "photo.jpg", format=kind)
    assert Images([tmp_path / "photo.jpg"], torch.tensor([0])).picture(0).mode == "RGB"
