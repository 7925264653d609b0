"""Mean over samples of the cosine between the two models' embeddings."""

from typing import ClassVar

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.report.document.measurement import Unit
from ptq_cli.report.metrics.base import Labels, SampleSums, Targets, require_rows
from ptq_cli.report.metrics.recorder import Recorded
from ptq_cli.report.metrics.values.cosine import cosines


class EmbeddingCosine(Recorded):
    """Mean over samples of the cosine between the embeddings of the quantized and of the float model.

    An output [N, T, features] is averaged over the positions that the attention mask names, before.

    Shapes:
        update: output and labels [N, features], where the labels are the float model's embeddings.

    Units:
        none, -1 to 1.

    Edge case:
        As ``Cosine``: two zero vectors have 1, one zero vector has 0.

    Raises:
        MetricError: no sample was counted.

    Source:
        Reimers and Gurevych 2019, "Sentence-BERT", section 3 (mean of the tokens, compared by cosine).

    Example:
        >>> cosine = EmbeddingCosine()
        >>> cosine.update(np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[3.0, 0.0], [2.0, 0.0]]))
        >>> cosine.compute()
        0.5
    """

    unit: ClassVar[Unit] = "number"
    higher_is_better: ClassVar[bool] = True
    targets: ClassVar[Targets] = "float embeddings"

    def update(self, output: Array, labels: Labels) -> None:
        """Add one batch's cosines."""
        found = cosines(output.astype(np.float64), labels.astype(np.float64))
        self._recorder.add(found[:, None])

    def compute(self) -> float:
        """The mean over all samples so far."""
        rows = require_rows(self._recorder, "cosine_of_embeddings")
        return float(rows.sum() / len(rows))

    def resampling(self) -> SampleSums:
        """Each sample's cosine, of which the value is the mean."""
        rows = self._recorder.rows
        return SampleSums(rows, lambda sums: sums[..., 0] / len(rows))
