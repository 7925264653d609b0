"""What is fuzzed, and which commands read it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import onnx

from ptq_cli.cli.main import cli
from tests.properties.fuzz.hostile_data import (
    fuzz_images,
    fuzzed_npz,
    fuzzed_parquet,
    fuzzed_tar,
    npy,
    odd_array,
)
from tests.properties.fuzz.hostile_models import fuzzed_model
from tests.properties.fuzz.hostile_texts import flipped, fuzzed_json, fuzzed_statistics, fuzzed_toml

Random = np.random.Generator
Lines = list[str]
TARGETS = Path(__file__).parents[3] / "ptq_cli" / "plan" / "target" / "tables"


@dataclass(frozen=True)
class Kind:
    """One kind of input.

    Attributes:
        share: how many of a hundred inputs, about.
        fuzz: writes it into the current folder, and returns the commands that read it.
    """

    share: int
    fuzz: Callable[[Random], Lines]


def _float_models(random: Random) -> Lines:
    index = int(random.integers(0, len(list(Path("sources").glob("*.onnx")))))
    model = onnx.load(f"sources/{index}.onnx")
    Path("bad.onnx").write_bytes(fuzzed_model(model, random))
    data = f"--data sources/{index}.npz"
    return [
        "inspect bad.onnx",
        "export --float bad.onnx -o out.onnx",
        f"calibrate bad.onnx {data} --run out",
        f"quantize bad.onnx {data} --run out -o out.onnx",
        f"quantize bad.onnx {data} --run out --target tensorrt --json",
        f"quantize bad.onnx {data} --run out --weight-bits 4 --set run.evaluate=true "
        f"--eval-data sources/{index}.npz",
        "bench bad.onnx --runs 2",
        f"bench bad.onnx --runs 2 {data}",
    ]


def _quantized_models(random: Random) -> Lines:
    Path("bad.onnx").write_bytes(fuzzed_model(onnx.load("run/model_int8.onnx"), random))
    return [
        "inspect bad.onnx",
        "verify bad.onnx --random-inputs",
        "verify bad.onnx --data data.npz --json",
        "evaluate bad.onnx --run run",
        "analyze bad.onnx --run run --samples 2",
        "bench run/model.float.onnx bad.onnx --runs 2",
    ]


def _models_of_runs(random: Random) -> Lines:
    name = "model.float.onnx" if random.random() < 0.7 else "model_int8.onnx"
    path = Path("run", name)
    path.write_bytes(fuzzed_model(onnx.load(path), random))
    return [
        "export --run run",
        "evaluate --run run",
        "analyze --run run --samples 2",
        "verify --run run",
        "bench --run run --runs 2",
        "report --run run",
        "inspect --tensor relu --run run",
    ]


def _statistics(random: Random) -> Lines:
    content = fuzzed_statistics(Path("run/calibration.safetensors").read_bytes(), random)
    if random.random() < 0.2:
        Path("out").mkdir()
        Path("out/calibration.partial.safetensors").write_bytes(content)
        return ["calibrate model.onnx --data data.npz --run out"]
    if random.random() < 0.2:
        path = Path("part-1/calibration.safetensors")
        path.write_bytes(fuzzed_statistics(path.read_bytes(), random))
        return ["merge part-1 part-2 --run out", "merge part-1 --partial --run out"]
    Path("run/calibration.safetensors").write_bytes(content)
    return [
        "export --run run --amax entropy",
        "export --run run --amax mse --set amax.weight_method=mse",
        "export --run run",
        "evaluate --run run",
        "analyze --run run --samples 2",
        "inspect --run run",
        "inspect --run run --json",
        "inspect --tensor relu --run run",
        "report --run run",
    ]


def _recipes(random: Random) -> Lines:
    content = fuzzed_toml(Path("run/recipe.toml").read_bytes(), random)
    if random.random() < 0.5:
        Path("run/recipe.toml").write_bytes(content)
        return [
            "export --run run",
            "evaluate --run run",
            "verify --run run",
            "analyze --run run --samples 2",
            "inspect --tensor relu --run run",
        ]
    Path("run/bad.toml").write_bytes(content)
    return [
        "calibrate model.onnx --data data.npz --run out --recipe run/bad.toml",
        "quantize model.onnx --data data.npz --run out --recipe run/bad.toml",
        "inspect model.onnx --recipe run/bad.toml",
        "export --run run --recipe run/bad.toml",
        "evaluate --run run --recipe run/bad.toml",
        "bench --run run --runs 2 --recipe run/bad.toml",
    ]


def _targets(random: Random) -> Lines:
    tables = sorted(TARGETS.glob("*.toml"))
    content = tables[int(random.integers(0, len(tables)))].read_bytes()
    Path("bad.toml").write_bytes(fuzzed_toml(content, random))
    return [
        "inspect model.onnx --target bad.toml",
        "export --run run --target bad.toml",
        "verify run/model_int8.onnx --target bad.toml --random-inputs",
    ]


def _data(random: Random) -> Lines:
    form = ("npz", "npy", "tar", "tar.gz", "parquet", "old npz")[int(random.integers(0, 6))]
    name = f"bad.{form.removeprefix('old ')}"
    make = {
        "npz": fuzzed_npz,
        "npy": lambda random: npy(odd_array(random), random),
        "tar": fuzzed_tar,
        "tar.gz": lambda random: flipped(Path("data.tar.gz").read_bytes(), random),
        "parquet": fuzzed_parquet,
        "old npz": lambda random: flipped(Path("data.npz").read_bytes(), random),
    }
    Path(name).write_bytes(make[form](random))
    return _readers_of(name)


def _readers_of(data: str) -> Lines:
    return [
        f"calibrate model.onnx --data {data} --run out",
        f"quantize model.onnx --data {data} --run out",
        f"evaluate --run run --data {data}",
        f"analyze --run run --data {data} --samples 2",
        f"verify run/model_int8.onnx --data {data}",
        f"bench model.onnx --runs 2 --data {data}",
    ]


def _images(random: Random) -> Lines:
    fuzz_images(Path("images"), random)
    return [
        f"{line} --set image.resize=8,8" if "analyze" not in line and "evaluate" not in line else line
        for line in _readers_of("images")
    ]


def _reports(random: Random) -> Lines:
    name = ("report", "details", "analysis")[int(random.integers(0, 3))]
    path = Path("run", f"{name}.json")
    before = path.read_bytes()
    Path("before.json").write_bytes(before)
    path.write_bytes(fuzzed_json(before, random))
    commands = ["report --run run"]
    if name == "report":
        commands += [
            "gate run/report.json --max-drop top1=0.01 --max-size 1MB",
            "gate run/report.json --min sqnr_db=3 --json",
            "gate run/report.json",
            "gate before.json --baseline run/report.json --max-regression sqnr_db=1",
        ]
    if name != "details":
        commands += ["report run/report.json before.json", "report before.json run/report.json --json"]
    return commands


HOSTILE_WORDS = (
    *("", " ", "-1", "0", "nan", "inf", "1e400", "9" * 400, "../../x", "/etc/passwd", "/dev/null", "x="),
    *("=x", "=", "x=y=z", "\x1b[31m", "\u202eabc", "\udcff", "n" * 5000, "*", "[", "x[", "a:b", ":"),
    *("a.py:b", ",", "1,2,-3", "relu:weights.bits=99", "conv:=", "top1=1%", "top1=nan", "x=3,8,8", "x=0,0"),
    *("x=4,3,8,8", "\n", "{1..3}", "{000..999999999}.tar", "conv", "fc.*", "(?P<", "mse", "percentile"),
    *("uint8", "tensorrt", "0x10"),
)
OUTPUTS = {"output", "run", "plot", "page", "pack", "debug", "help", "device"}
STARTS = {
    "calibrate": "model.onnx --data data.npz --run out",
    "merge": "part-1 part-2 --run out",
    "quantize": "model.onnx --data data.npz --run out",
    "verify": "run/model_int8.onnx --random-inputs",
    "bench": "model.onnx --runs 2",
    "inspect": "model.onnx",
    "gate": "run/report.json",
    "export": "--run run",
    "evaluate": "--run run",
    "analyze": "--run run --samples 2",
    "report": "--run run",
    "drift": "data.npz --run run",
}


def _arguments(random: Random) -> Lines:
    """A command that would work, with one more flag or argument that makes no sense."""
    name = str(random.choice(sorted(STARTS)))
    context = click.Context(cli)
    command = cli.get_command(context, name)
    assert command is not None
    flags = [p for p in command.params if isinstance(p, click.Option) and p.name not in OUTPUTS]
    word = HOSTILE_WORDS[int(random.integers(0, len(HOSTILE_WORDS)))]
    if not flags or random.random() < 0.1:
        return ["\t".join([name, *STARTS[name].split(), word])]
    flag = flags[int(random.integers(0, len(flags)))]
    more = [flag.opts[0]] if flag.is_flag else [flag.opts[0], word]
    return ["\t".join([name, *STARTS[name].split(), *more])]


KINDS: dict[str, Kind] = {
    "float model": Kind(32, _float_models),
    "quantized model": Kind(12, _quantized_models),
    "model of a run": Kind(6, _models_of_runs),
    "statistics": Kind(9, _statistics),
    "recipe": Kind(8, _recipes),
    "target": Kind(3, _targets),
    "data": Kind(13, _data),
    "images": Kind(4, _images),
    "report": Kind(8, _reports),
    "arguments": Kind(5, _arguments),
}
