"""The promises' assertions say what they compared, as those of a test do."""

import pytest

for name in ("every_target", "ort_cpu"):
    pytest.register_assert_rewrite(f"tests.contracts.small_graphs.{name}")
