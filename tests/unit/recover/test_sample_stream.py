"""Tensors between the stages of a model."""

from types import SimpleNamespace
from typing import cast

from ptq_cli.qdq.cut_stages import Stage
from ptq_cli.recover.sample_stream import last_readers


def test_a_tensor_is_released_behind_its_last_reader_and_outputs_never() -> None:
    def stage(inputs: str, outputs: str) -> Stage:
        return cast(Stage, SimpleNamespace(inputs=tuple(inputs), outputs=tuple(outputs)))

    stages = [stage("x", "ab"), stage("a", "c"), stage("xc", "d"), stage("d", "y")]
    assert last_readers(stages, "y") == [["b"], ["a"], ["x", "c"], ["d"]]
