"""Fewer cases by day: a run that leaves out the tests marked nightly takes some cases of the others."""

from collections.abc import Iterable
from typing import TypeVar

import pytest
from hypothesis import settings

Case = TypeVar("Case")
WITHOUT_NIGHTLY = "not nightly"
# Derandomized, so that the examples are the same on every machine, however busy it is.
settings.register_profile("night", deadline=None, derandomize=True)
settings.register_profile("day", settings.get_profile("night"), max_examples=25)
_by_day: list[bool] = [False]


def configure(config: pytest.Config) -> None:
    """Find out which run it is, before any test is imported."""
    _by_day[0] = config.option.markexpr == WITHOUT_NIGHTLY
    settings.load_profile("day" if _by_day[0] else "night")


def fewer(cases: Iterable[Case], step: int) -> list[Case]:
    """Return every so-manieth case by day, and all of them at night."""
    return list(cases)[:: step if _by_day[0] else 1]


def examples(count: int) -> settings:
    """Settings of a test with so many examples at night, and a quarter of them by day."""
    return settings(max_examples=-(-count // 4) if _by_day[0] else count)
