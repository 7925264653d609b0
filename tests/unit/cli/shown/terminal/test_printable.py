"""Text from elsewhere, before a terminal sees it."""

from pathlib import Path

from ptq_cli.cli.terminal.phrases import as_typed, printable
from tests.each_case import each_case

HOSTILE = {
    "an escape": ("a\x1b[2Jb", "a?[2Jb"),
    "a bell": ("a\x07", "a?"),
    "a carriage return": ("safe\rforged", "safe?forged"),
    "a direction mark": ("a\u202eb", "a?b"),
    "half of a surrogate pair": ("a\udcff", "a?"),
    "a newline": ("a\nb", "a\nb"),
    "letters of the world": ("größe 量子 é", "größe 量子 é"),
}


@each_case("text, shown", HOSTILE.values(), ids=HOSTILE.keys())
def test_control_characters_are_replaced(text: str, shown: str) -> None:
    assert printable(text) == shown


PATHS = {
    "quoted": ("data '/srv/c/a.npz' is", "data 'a.npz' is"),
    "in a subfolder": ("/srv/c/run/a", "run/a"),
    "twice": ("'/srv/c/a' and '/srv/c/b'", "'a' and 'b'"),
    "a folder that begins alike": ("/srv/cc/a", "/srv/cc/a"),
    "a longer path that ends alike": ("/mnt/srv/c/a", "/mnt/srv/c/a"),
    "the folder itself": ("'/srv/c' is", "'/srv/c' is"),
    "with a sample": ("sample '/srv/c/a.npz[3]'", "sample 'a.npz[3]'"),
}


@each_case("text, shown", PATHS.values(), ids=PATHS.keys())
def test_paths_below_the_folder_become_relative(text: str, shown: str) -> None:
    assert as_typed(text, Path("/srv/c")) == shown


def test_at_the_root_paths_stay_absolute() -> None:
    assert as_typed("'/a/b'", Path("/")) == "'/a/b'"


def test_a_folder_s_name_is_no_pattern() -> None:
    assert as_typed("'/a+b/x' '/aab/x'", Path("/a+b")) == "'x' '/aab/x'"
