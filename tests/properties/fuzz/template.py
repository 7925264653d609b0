"""The folder that fuzzed inputs are put into: models, data in each form, and finished runs."""

import contextlib
import gzip
import io
import tarfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from ptq_cli.cli.main import run
from tests.properties.random_graphs import BATCH, random_model
from tests.properties.random_steps import STEPS
from tests.unit.plan.graphs import build, sample

SAMPLES = 4
SOURCES = 8  # Random models, besides those that are written below
IMAGES = """(float[N, 3, 8, 8] x) => (float[N, 5] scores)
<float[8, 3, 3, 3] w, float[8] b, float[8, 5] m, float[5] n> {
    conv = Conv<pads=[1, 1, 1, 1]>(x, w, b)
    relu = Relu(conv)
    pool = GlobalAveragePool(relu)
    flat = Flatten(pool)
    scores = Gemm(flat, m, n)
}"""
NESTED = """(float[N, 8] x) => (float[N, 8] y) <float[8, 8] w, float[8, 8] v> {
    sum = ReduceSum<keepdims=0>(x)
    zero = Constant<value = float {0}>()
    flag = Greater(sum, zero)
    y = If(flag) <
        then_branch = a () => (float[N, 8] p) { p = MatMul(x, w) },
        else_branch = c () => (float[N, 8] q) { r = MatMul(x, v)
            q = Relu(r) }
    >
}"""
RECURRENT = """(float[4, N, 6] x) => (float[4, 1, N, 5] y) <float[1, 20, 6] w, float[1, 20, 5] r> {
    y = LSTM<hidden_size=5>(x, w, r)
}"""


def write_template(folder: Path) -> None:
    """Write the folder, and the runs in it.

    Raises:
        RuntimeError: a command fails.
    """
    folder.mkdir(parents=True)
    _write_models(folder)
    random = np.random.default_rng(0)
    x = random.standard_normal((SAMPLES, 3, 8, 8)).astype(np.float32)
    labels = random.integers(0, 5, SAMPLES)
    np.savez(folder / "data.npz", x=x, label=labels)
    np.save(folder / "data.npy", x)
    _write_tars(folder, x, labels)
    pq.write_table(
        pa.table({"x": [row.reshape(-1).tolist() for row in x], "label": labels}), folder / "data.parquet"
    )
    for index in range(SAMPLES):
        path = folder / "images" / str(index % 2) / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
    with contextlib.chdir(folder):
        for line in (
            "quantize model.onnx --prefer size --data data.npz --eval-data data.npz --set run.evaluate=true "
            "--metric top1 --run run -q",
            "analyze --run run --samples 2 -q",
            "calibrate model.onnx --data data.npz --set data.batch_size=2 --shard 1/2 --run part-1 -q",
            "calibrate model.onnx --data data.npz --set data.batch_size=2 --shard 2/2 --run part-2 -q",
        ):
            if run(line.split()):
                raise RuntimeError(line)


def _write_models(folder: Path) -> None:
    onnx.save(ir.to_proto(build(IMAGES)), folder / "model.onnx")
    sources = folder / "sources"
    sources.mkdir()
    models = [ir.to_proto(build(text)) for text in (IMAGES, NESTED, RECURRENT)]
    models += [random_model(seed, 2 * (1 + seed), STEPS) for seed in range(SOURCES)]
    for index, model in enumerate(models):
        onnx.save(model, sources / f"{index}.onnx")
        batches = [sample(ir.from_proto(model), number, BATCH) for number in range(SAMPLES // BATCH)]
        arrays = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
        np.savez(sources / f"{index}.npz", **arrays)


def _write_tars(folder: Path, x: np.ndarray, labels: np.ndarray) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for index, (row, label) in enumerate(zip(x, labels, strict=True)):
            member = io.BytesIO()
            np.save(member, row)
            for name, content in (("x.npy", member.getvalue()), ("cls", b"%d" % label)):
                info = tarfile.TarInfo(f"{index}.{name}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    (folder / "data.tar").write_bytes(stream.getvalue())
    (folder / "data.tar.gz").write_bytes(gzip.compress(stream.getvalue(), mtime=0))
