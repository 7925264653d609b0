"""The sample's calibration images, packed in other forms: the same statistics, from each of the commands."""

import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

import ptq_cli
from ptq_cli.calibdata import tar_dataset as tar_module
from ptq_cli.calibdata.image_folder import list_images
from tests.day import fewer

SAMPLES = 64


def pack_tar(folder: str, target: Path, shards: int = 1, mode: str = "w") -> None:
    listing = list_images(folder)
    members = list(zip(listing.names, listing.labels, strict=True))
    size = -(-len(members) // shards)
    for shard in range(shards):
        name = target.with_name(target.name.replace("#", f"{shard:03}"))
        with tarfile.open(name, mode) as archive:
            for number, (image, label) in enumerate(members[shard * size : (shard + 1) * size]):
                for suffix, content in (
                    ("jpg", (Path(folder) / image).read_bytes()),
                    ("cls", b"%d" % label),
                    ("json", json.dumps({"name": image}).encode()),
                ):
                    info = tarfile.TarInfo(f"{shard * size + number:06}.{suffix}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))


def pack_parquet(folder: str, target: Path, parts: int = 1) -> None:
    listing = list_images(folder)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = [{"bytes": (Path(folder) / name).read_bytes(), "path": name} for name in listing.names]
    table = pa.table({"image": pa.array(images, kind), "label": listing.labels, "name": listing.names})
    size = -(-len(images) // parts)
    for part in range(parts):
        name = target.with_name(target.name.replace("#", f"{part:05}"))
        pq.write_table(table[part * size : (part + 1) * size], name, row_group_size=100)


def statistics(run: Path) -> dict[str, bytes]:
    tensors = load_file(run / "calibration.safetensors")
    return {name: array.tobytes() + str(array.dtype).encode() for name, array in tensors.items()}


PACKED = {
    "tar": ("calib.tar", lambda: pack_tar("calib", Path("calib.tar"))),
    "shards": ("shards/t-{000..003}.tar", lambda: pack_tar("calib", Path("shards/t-#.tar"), 4)),
    "Parquet": ("calib.parquet", lambda: pack_parquet("calib", Path("calib.parquet"))),
    "a folder of Parquet": ("shards", lambda: pack_parquet("calib", Path("shards/train-#.parquet"), 3)),
}


@pytest.fixture
def shards(cifar: Path) -> Any:
    """A folder for shards in the image sample's, which is the current one; it is removed afterwards."""
    (cifar / "shards").mkdir()
    yield cifar / "shards"
    shutil.rmtree(cifar / "shards")


@pytest.fixture(scope="module")
def folder_run(samples: Path, calibrated_cifar: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the folder of images; its model is ONNX, which is faster to open than PyTorch."""
    run = tmp_path_factory.mktemp("folder") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(samples / "cifar10_cnn")
        ptq_cli.calibrate(model=calibrated_cifar / "model.float.onnx", run=run, samples=SAMPLES)
    return run


@pytest.fixture
def model(folder_run: Path) -> str:
    """The path of the model."""
    return str(folder_run / "model.float.onnx")


@pytest.fixture
def of_folder(folder_run: Path) -> dict[str, bytes]:
    """The statistics of the folder of images."""
    return statistics(folder_run)


@pytest.mark.parametrize(("name", "pack"), fewer(PACKED.values(), 2), ids=fewer(PACKED, 2))
def test_packed_images_give_the_statistics_of_the_folder(shards, ptq, tmp_path, model, of_folder, name, pack):
    pack()
    outcome = ptq(f"calibrate {model} --data {name} --samples {SAMPLES} --run {tmp_path}/run")
    assert outcome.status == 0, outcome
    assert statistics(tmp_path / "run") == of_folder


KINDS = ["tar", pytest.param("parquet", marks=pytest.mark.nightly)]


@pytest.mark.parametrize("kind", KINDS)
def test_shards_of_batches_merge_to_the_single_run(shards, ptq, tmp_path, model, of_folder, kind):
    if kind == "tar":
        pack_tar("calib", shards / "t-#.tar", 3)
    else:
        pack_parquet("calib", shards / "t-#.parquet", 3)
    words = f"calibrate {model} --data shards --samples {SAMPLES} --set data.batch_size=8"
    for number in (1, 2, 3):
        assert ptq(f"{words} --shard {number}/3 --run {tmp_path}/{number}").status == 0
    merged = ptq(f"merge {tmp_path}/1 {tmp_path}/2 {tmp_path}/3 --run {tmp_path}/all")
    assert merged.status == 0, merged
    assert statistics(tmp_path / "all") == of_folder


@pytest.mark.parametrize("kind", KINDS)
def test_evaluate_and_quantize_take_them(shards, ptq, tmp_path, model, kind):
    pack = pack_tar if kind == "tar" else pack_parquet
    pack("calib", shards / f"calib.{kind}")
    options = "--samples 16 --set evaluation.samples=16"
    scores = []
    for data in ("calib", f"shards/calib.{kind}"):
        run = tmp_path / f"run-{len(scores)}"
        words = (
            f"quantize {model} --data {data} --eval-data {data} --set run.evaluate=true {options} --run {run}"
        )
        outcome = ptq(words)
        assert outcome.status == 0, outcome
        scores.append(json.loads((run / "report.json").read_text())["metrics"])
    assert ptq(f"evaluate --eval-data shards/calib.{kind} --eval-samples 16 --run {run}").status == 0
    assert scores[0] == scores[1]


def test_the_inputs_of_a_model_of_sequences(digits: Path, ptq: Any, tmp_path: Path) -> None:
    arrays = np.load("calib.npz")
    names = [name for name in arrays.files if name != "label"]
    with tarfile.open(tmp_path / "calib.tar", "w") as archive:
        for sample in range(40):
            for name in names:
                stream = io.BytesIO()
                np.save(stream, arrays[name][sample])
                info = tarfile.TarInfo(f"{sample:04}.{name}.npy")
                info.size = stream.tell()
                archive.addfile(info, io.BytesIO(stream.getvalue()))
    columns = {name: pa.array(arrays[name][:40].tolist(), _list_of(arrays[name])) for name in names}
    pq.write_table(pa.table(columns), tmp_path / "calib.parquet", row_group_size=7)
    found = []
    for data in ("calib.npz", f"{tmp_path}/calib.tar", f"{tmp_path}/calib.parquet"):
        run = tmp_path / f"run-{len(found)}"
        outcome = ptq(f"calibrate model.onnx --data {data} --samples 40 --run {run}")
        assert outcome.status == 0, outcome
        found.append(statistics(run))
    assert found[0] == found[1] == found[2]


def _list_of(array: np.ndarray) -> pa.DataType:
    kind = pa.from_numpy_dtype(array.dtype)
    for _ in array.shape[1:]:
        kind = pa.list_(kind)
    return kind


def test_a_calibration_of_shards_continues_after_it_was_ended(
    shards, ptq, tmp_path, monkeypatch, model, of_folder
):
    pack_tar("calib", shards / "t-#.tar", 2)
    words = f"calibrate {model} --data shards --samples {SAMPLES}"
    words += " --set data.batch_size=8 --set runtime.checkpoint_every=0"
    join, calls = tar_module.join_samples, []

    def ends(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return join(*arguments)

    monkeypatch.setattr(tar_module, "join_samples", ends)
    assert ptq(f"{words} --run {tmp_path}/run").status == 130
    assert (tmp_path / "run/calibration.partial.safetensors").exists()
    outcome = ptq(f"{words} --run {tmp_path}/run")
    assert outcome.status == 0, outcome
    assert "continuing an earlier calibration" in outcome.err
    assert statistics(tmp_path / "run") == of_folder
