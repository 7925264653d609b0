from ptq_cli.calibdata.dataset.data_files import SUFFIXES
from ptq_cli.calibdata.tar.sample import Kind, Role, role_of, split_name
from tests.each_case import each_case


@each_case(
    "path, parts",
    [
        ("0001.jpg", ("0001", "jpg")),
        ("./cat/0001.jpg", ("./cat/0001", "jpg")),
        ("v1.2/0001.mask.npy", ("v1.2/0001", "mask.npy")),
        ("frame.0001.jpg", ("frame", "0001.jpg")),
        ("README", None),
        ("cat/.hidden.jpg", None),
        ("__MACOSX/._0001.jpg", None),
        ("0001.", None),
        ("", None),
    ],
)
def test_a_key_ends_at_the_first_dot_of_the_base_name(path, parts):
    assert split_name(path) == parts


@each_case("suffix", SUFFIXES)
def test_images(suffix):
    assert role_of(suffix[1:].upper()) == Role(Kind.IMAGE)
    assert role_of(f"pixels{suffix}") == Role(Kind.IMAGE, "pixels")


@each_case(
    "extension, role",
    [
        ("npy", Role(Kind.ARRAY)),
        ("input_ids.npy", Role(Kind.ARRAY, "input_ids")),
        ("a.b.npy", Role(Kind.ARRAY, "a.b")),
        ("Input.NPY", Role(Kind.ARRAY, "Input")),
        ("label.npy", Role(Kind.LABEL)),
        ("labels.npy", Role(Kind.LABEL)),
        ("cls", Role(Kind.CLASS)),
        ("json", Role(Kind.JSON)),
        *[(name, None) for name in ("x.cls", "meta.json", "txt", "pyd", "pickle", "pth", "npz", "jpgx")],
    ],
)
def test_what_an_extension_says(extension, role):
    assert role_of(extension) == role
