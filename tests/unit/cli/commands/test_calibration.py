"""``ptq calibration show``: its help, and how shares and numbers read."""

from ptq_cli.cli.shown.channel_tables import format_clipped
from ptq_cli.report.text.tables import format_share
from tests.each_case import each_case


@each_case("total", [3, 1000, 10**6, 10**12])
@each_case("count", [0, 1, 2])
def test_a_share_is_0_or_100_only_where_it_is(count: int, total: int) -> None:
    assert (format_share(count, total) == "0 %") == (count == 0)
    assert (format_share(total - count, total) == "100 %") == (count == 0)


SHARES = {1: "0.0001 %", 12: "0.0012 %", 12_345: "1.23 %", 998_990: "99.9 %", 999_990: "99.999 %"}


@each_case("count, text", SHARES.items())
def test_a_share_has_the_digits_that_tell(count: int, text: str) -> None:
    assert format_share(count, 10**6) == text


def test_a_cut_bin_makes_the_share_a_bound() -> None:
    assert format_clipped((10, 20), 1000) == "≤2 %"
    assert format_clipped((20, 20), 1000) == "2 %"
