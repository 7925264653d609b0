"""The small runs of the unit tests, for tests of several rooms together."""

from tests.unit.conftest import finished, folder, report, request_with, run, trusted_code

__all__ = ["finished", "folder", "report", "request_with", "run", "trusted_code"]
