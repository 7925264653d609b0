"""docs/analyze.md fits a terminal, and describes every cause."""

import re
from pathlib import Path
from typing import get_args

from ptq_cli.evaluation.document.analysis_document import Cause
from tools.pages.page_blocks import blocks

PAGE = (Path(__file__).parents[2] / "docs" / "analyze.md").read_text(encoding="utf-8")
SHOWN_AS = {"channel imbalance": "imbalance", "bias overflow": "bias"}


def test_the_session_fits_its_terminal() -> None:
    session = next(block.text for block in blocks(PAGE) if block.language == "console").splitlines()
    tables = [
        line for line in session if re.match(r"\s+\d|  \w|no cause|to try", line) or "own/accum." in line
    ]
    assert max(len(line) for line in tables if not line.startswith("  s")) <= 80


def test_every_cause_is_described() -> None:
    rows = re.findall(r"^\| ([\w ]+) \| .+ \| .+ \|$", PAGE, re.MULTILINE)
    for cause in filter(None, get_args(Cause)):
        assert SHOWN_AS.get(cause, cause) in rows, cause
