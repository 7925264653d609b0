"""Text from elsewhere, before a terminal sees it."""

from pathlib import Path

from ptq_cli.terminal.phrases import as_typed, printable
from tests.each_case import each_case, table

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


PATHS = table("""
    data '/srv/c/a.npz' is    | data 'a.npz' is
    /srv/c/run/a              | run/a
    '/srv/c/a' and '/srv/c/b' | 'a' and 'b'
    /srv/cc/a                 | /srv/cc/a
    /mnt/srv/c/a              | /mnt/srv/c/a
    '/srv/c' is               | '/srv/c' is
    sample '/srv/c/a.npz[3]'  | sample 'a.npz[3]'
""")


@each_case("text, shown", PATHS)
def test_paths_below_the_folder_become_relative(text: str, shown: str) -> None:
    assert as_typed(text, Path("/srv/c")) == shown


def test_at_the_root_paths_stay_absolute() -> None:
    assert as_typed("'/a/b'", Path("/")) == "'/a/b'"


def test_a_folder_s_name_is_no_pattern() -> None:
    assert as_typed("'/a+b/x' '/aab/x'", Path("/a+b")) == "'x' '/aab/x'"
