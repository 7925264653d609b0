"""The small analysis that tests of the report need, too."""

from tests.unit.evaluation.conftest import analysis

__all__ = ["analysis"]
