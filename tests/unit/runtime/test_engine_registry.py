"""A model that is opened for each batch computes what an open one does."""

from pathlib import Path

import numpy as np

from ptq_cli.models.files.stored import read_model
from ptq_cli.runtime.engine_registry import ReopenedModel
from ptq_cli.runtime.session import Session
from tests.large_models import write_large


def test_every_batch_gives_what_an_open_session_gives(tmp_path: Path) -> None:
    write_large(tmp_path / "m.onnx", width=16, layers=3)
    model = read_model(tmp_path / "m.onnx")
    session, reopened = Session(model, threads=1), ReopenedModel(model, threads=1)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((seed + 1, 16)).astype(np.float32)
        np.testing.assert_array_equal(reopened.run({"x": x})[0], session.run({"x": x})[0])
