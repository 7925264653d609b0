import os
from pathlib import Path

import pytest

from ptq_cli.calibdata.dataset.data_files import escaped_name
from ptq_cli.calibdata.image_folder import ImageDataset, digest_listing, list_images
from ptq_cli.core.errors import DataFormatError, EmptyDataError, InputFileError
from ptq_cli.recipe.sections import ImageSettings


@pytest.fixture
def make(tmp_path):
    """Make empty files; return their folder. Listing opens none, so they need no content."""

    def build(*names):
        for name in names:
            (tmp_path / "calib" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "calib" / name).touch()
        return str(tmp_path / "calib")

    return build


def test_round_robin_over_the_classes(make):
    listing = list_images(make("c/1.png", "a/2.png", "a/1.png", "a/3.png", "b/1.png", "b/2.png"))
    assert listing.names == ["a/1.png", "b/1.png", "c/1.png", "a/2.png", "b/2.png", "a/3.png"]
    assert listing.labels == [0, 1, 2, 0, 1, 0]
    assert listing.class_names == ("a", "b", "c")


def test_empty_class_folder_keeps_its_label(make, tmp_path):
    root = make("a/1.png", "c/1.png")
    (tmp_path / "calib/b").mkdir()
    listing = list_images(root)
    assert listing.class_names == ("a", "b", "c")
    assert listing.labels == [0, 2]


def test_hidden_and_other_files_are_ignored(make):
    root = make("a/1.JPG", "a/.hidden.jpg", "a/notes.txt", ".git/x.png", "readme.md", "__MACOSX/a/1.jpg")
    listing = list_images(root)
    assert (listing.names, listing.class_names) == (["a/1.JPG"], ("a",))


def test_images_beside_and_in_folders(make):
    with pytest.raises(DataFormatError, match=r"beside and in subfolders: '1\.png' and 'a/1\.png'"):
        list_images(make("1.png", "a/1.png"))


@pytest.mark.parametrize("names", [["x.npy"], ["a/x.npy", "b/.y.png"]], ids=["flat", "classes"])
def test_folder_without_images(make, names):
    with pytest.raises(EmptyDataError, match="holds no images") as error:
        list_images(make(*names))
    assert ".jpg .jpeg .png" in error.value.hint


def test_missing_folder(tmp_path):
    with pytest.raises(InputFileError, match="cannot be listed: No such file"):
        list_images(str(tmp_path / "missing"))


def test_link_inside_the_folder_is_followed(make, tmp_path):
    root = make("a/1.png")
    (tmp_path / "calib/a/2.png").symlink_to(tmp_path / "calib/a/1.png")
    assert list_images(root).names == ["a/1.png", "a/2.png"]


def test_neighbor_with_the_same_beginning_is_outside(make, tmp_path):
    (tmp_path / "calib2").mkdir()
    (tmp_path / "calib2/1.png").touch()
    root = make("1.png")
    (tmp_path / "calib/2.png").symlink_to(tmp_path / "calib2/1.png")
    with pytest.raises(DataFormatError, match="a link that leaves the folder"):
        list_images(root)


def test_link_to_a_folder_is_refused(make, tmp_path):
    root = make("a/1.png")
    (tmp_path / "calib/a/loop").symlink_to(tmp_path / "calib")
    with pytest.raises(DataFormatError, match=r"'a/loop' of .* is a link to a folder, which is not followed"):
        list_images(root)


def test_link_to_no_image_is_ignored(make, tmp_path):
    root = make("a/1.png")
    (tmp_path / "calib/a/gone.txt").symlink_to(tmp_path / "nowhere")
    assert list_images(root).names == ["a/1.png"]


def test_name_that_is_no_utf8(make):
    root = make("1.png")
    Path(root, os.fsdecode(b"\xff.png")).touch()
    names = list_images(root).names
    assert [escaped_name(name) for name in names] == ["1.png", "\\xff.png"]
    assert len(digest_listing(root, names)) == 64


def test_digest_depends_on_names_and_sizes_only(make, tmp_path):
    root = make("a/1.png", "a/2.png")
    names = ["a/1.png", "a/2.png"]
    first = digest_listing(root, names)
    assert digest_listing(root, names[::-1]) == first
    assert digest_listing(root, names[:1]) != first
    (tmp_path / "calib/a/2.png").write_bytes(b"x")
    assert digest_listing(root, names) != first


def test_digest_of_a_file_that_vanished(make):
    with pytest.raises(InputFileError, match=r"image 'gone\.png' cannot be read: No such file"):
        digest_listing(make("1.png"), ["gone.png"])


def test_nothing_is_opened(make, monkeypatch):
    opened = []

    def forbid(path, *_arguments, **_options):
        opened.append(path)
        raise AssertionError

    root = make(*(f"{name}/{index}.jpg" for name in "ab" for index in range(50)))
    for target in ("os.open", "builtins.open", "io.open", "PIL.Image.open"):
        monkeypatch.setattr(target, forbid)
    dataset = ImageDataset(root, ImageSettings(resize=[4, 4]))
    assert dataset.count == 100
    dataset.digest()
    assert not opened
