"""Recipes and flags that cannot be used."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.each_case import each_case

MODEL = " model.onnx --data calib.npz"
WORDS = {
    "calibrate": "calibrate" + MODEL,
    "export": "export",
    "evaluate": "evaluate",
    "quantize": "quantize" + MODEL,
    "inspect": "inspect model.onnx",
}


@dataclass(frozen=True)
class Bad:
    """The content of ptq.toml, and the answer."""

    toml: str
    code: str
    says: tuple[str, ...]
    hint: str


TOML: dict[str, Bad] = {
    "no TOML": Bad("[calibration", "PTQ-RECIPE-001", ("ptq.toml is not valid TOML",), "toml.io"),
    "an unknown section": Bad(
        "[calibraton]\n", "PTQ-RECIPE-002", ("(did you mean 'calibration'?)",), "top level"
    ),
    "a misspelt key": Bad(
        "[calibration]\nmehtod = 'max'\n",
        "PTQ-RECIPE-002",
        ("ptq.toml: unknown key 'calibration.mehtod' (did you mean 'method'?)",),
        "[calibration] has: data, method",
    ),
    "an unknown key": Bad("[amax]\nzzz = 1\n", "PTQ-RECIPE-002", ("unknown key 'amax.zzz'",), "[amax] has"),
    "a wrong type": Bad(
        "[calibration]\nbatch_size = 'x'\n",
        "PTQ-RECIPE-003",
        ("'x', expected a whole number",),
        "batch_size",
    ),
    "true for a number": Bad("[runtime]\nthreads = true\n", "PTQ-RECIPE-003", ("a whole number",), "threads"),
    "a number below its range": Bad(
        "[calibration]\nbatch_size = 0\n", "PTQ-RECIPE-003", ("is 0, it must be at least 1",), "batch_size"
    ),
    "threads beyond reason": Bad(
        "[runtime]\nthreads = 1000000\n", "PTQ-RECIPE-003", ("0 to 1024",), "threads"
    ),
    "an empty path": Bad("[model]\npath = ''\n", "PTQ-RECIPE-003", ("expected a path",), "model.path"),
    "an unknown method": Bad(
        "[calibration]\nmethod = 'histgram'\n",
        "PTQ-RECIPE-004",
        ("unknown method 'histgram' (did you mean 'histogram'?)",),
        "known: histogram, max",
    ),
    "an unknown target": Bad(
        "[quantization]\ntarget = 'tpu'\n",
        "PTQ-RECIPE-004",
        ("unknown target 'tpu'",),
        "known: generic, openvino, ort-cpu, tensorrt",
    ),
    "an unknown device": Bad(
        "[runtime]\ndevice = 'gpu'\n",
        "PTQ-RECIPE-004",
        ("unknown device 'gpu' (did you mean 'cuda'?)",),
        "known: cpu, cuda, cuda:N",
    ),
    "an unknown metric": Bad(
        "[evaluation]\nmetrics = ['tpo1']\n",
        "PTQ-RECIPE-004",
        ("'tpo1' (did you mean",),
        "top1, top5, class_accuracy",
    ),
    "an unknown amax method": Bad("[amax]\nmethod = 'mean'\n", "PTQ-RECIPE-004", ("'mean'",), "percentile"),
    "a limit on an unknown metric": Bad(
        "[gate.min]\nsqnr = 20\n", "PTQ-RECIPE-004", ("'sqnr' (did you mean 'sqnr_db'?)",), "known"
    ),
    "a negative drop": Bad(
        "[gate.max_drop]\ntop1 = -0.1\n", "PTQ-GATE-001", ("is negative",), "without a sign"
    ),
    "a drop of what has none": Bad(
        "[gate.max_drop]\nsqnr_db = 1\n", "PTQ-GATE-001", ("sqnr_db has no drop",), "--min sqnr_db"
    ),
    "a limit that is a text": Bad(
        "[gate.max_drop]\ntop1 = 'much'\n", "PTQ-GATE-001", ("'much' is a string",), "top1=0.01"
    ),
    "a size that is none": Bad(
        "[gate]\nmax_size = '1 cow'\n", "PTQ-GATE-001", ("'1 cow' is not a valid size",), "900KiB"
    ),
    "a regression on an unknown metric": Bad(
        "[gate]\nbaseline = 'old.json'\nmax_regression = { top = 0.1 }\n",
        "PTQ-RECIPE-004",
        ("'top' (did you mean 'top5'?)",),
        "known",
    ),
    "a minimum of an error": Bad(
        "[gate.min]\nmax_abs_error = 1\n", "PTQ-GATE-001", ("the worse model",), "sqnr_db"
    ),
    "a limit that is infinite": Bad(
        "[gate.min]\nsqnr_db = inf\n", "PTQ-GATE-001", ("not finite",), "sqnr_db=25"
    ),
}


@each_case("bad", TOML.values(), ids=TOML.keys())
def test_a_bad_recipe_is_refused(folder: Path, refuse: Any, bad: Bad) -> None:
    (folder / "ptq.toml").write_text(bad.toml)
    refuse(WORDS["calibrate"], bad.code, *bad.says, hint=bad.hint)


@each_case("command", WORDS)
@each_case("name", ["a misspelt key", "a number below its range", "a negative drop"])
def test_every_command_refuses_a_bad_recipe(folder: Path, refuse: Any, name: str, command: str) -> None:
    bad = TOML[name]
    (folder / "ptq.toml").write_text(bad.toml)
    refuse(WORDS[command], bad.code, *bad.says, hint=bad.hint)


def test_a_broken_link_in_place_of_ptq_toml(folder: Path, refuse: Any) -> None:
    (folder / "ptq.toml").symlink_to("nowhere.toml")
    for command in WORDS.values():
        refuse(command, "PTQ-FILE-001", "recipe 'ptq.toml' does not exist")


FLAGS = {
    "an unknown preset": (
        "calibrate model.onnx --preset fp4",
        "PTQ-RECIPE-004",
        "preset 'fp4'",
        "int8_ort_cpu",
    ),
    "an unknown method": (
        "calibrate model.onnx --method mx",
        "PTQ-RECIPE-004",
        "(did you mean 'max'?)",
        "known",
    ),
    "an unknown target": (
        "inspect model.onnx --target ort",
        "PTQ-RECIPE-004",
        "unknown target 'ort'",
        "ort-cpu",
    ),
    "an unknown metric": ("evaluate --metric tp1", "PTQ-RECIPE-004", "(did you mean 'top1'?)", "top5"),
    "a percentile beyond 100": (
        "export --set amax.percentile=101",
        "PTQ-RECIPE-003",
        "at most 100",
        "amax.percentile",
    ),
    "a text for a number": (
        "calibrate m --samples many",
        "PTQ-USAGE-001",
        "'many' is not a valid integer",
        "--help",
    ),
    "a shape without a name": ("inspect m --input-shape 1,3", "PTQ-USAGE-001", "NAME=N,N,…", "x=1,3,224,224"),
    "a shape of zero": (
        "inspect m --input-shape x=0,3",
        "PTQ-RECIPE-003",
        "sizes of at least 1",
        "x=1,3,224,224",
    ),
    "a list of no numbers": ("inspect m --set image.mean=a,b", "PTQ-RECIPE-003", "a number", "image.mean"),
    "a limit without a number": ("evaluate --max-drop top1", "PTQ-GATE-001", "METRIC=NUMBER", "top1=0.01"),
    "a limit in percent": (
        "evaluate --min sqnr_db=1%",
        "PTQ-GATE-001",
        "is not a plain number",
        "the metric's own unit",
    ),
    "a percentage of no number": (
        "evaluate --max-drop top1=abc%",
        "PTQ-GATE-001",
        "'abc' is not a number",
        "top1=0.01",
    ),
    "a size that is none": (
        "evaluate --set gate.max_size=big",
        "PTQ-GATE-001",
        "--max-size 'big' is not a valid size",
        "1MB",
    ),
    "a regression from nothing": (
        "evaluate --max-regression sqnr_db=1",
        "PTQ-GATE-001",
        "needs an earlier report",
        "--baseline",
    ),
    "a baseline that decides nothing": (
        "gate ptq-run/report.json --baseline ptq-run/report.json",
        "PTQ-GATE-001",
        "has no effect without a limit",
        "--max-regression",
    ),
    "a baseline that is missing": (
        "gate ptq-run/report.json --baseline nowhere.json --max-regression sqnr_db=1",
        "PTQ-FILE-001",
        "report 'nowhere.json' does not exist",
        "check the path",
    ),
    "a baseline that is no report": (
        "evaluate --baseline model.onnx --max-regression sqnr_db=1",
        "PTQ-REPORT-001",
        "baseline report 'model.onnx': it is not valid JSON",
        "ptq evaluate",
    ),
    "a baseline that would be overwritten": (
        "evaluate --baseline ptq-run/report.json --max-regression sqnr_db=1",
        "PTQ-USAGE-001",
        "would overwrite the baseline",
        "--run",
    ),
    "a limit that is NaN": (
        "gate ptq-run/report.json --min sqnr_db=nan",
        "PTQ-GATE-001",
        "nan",
        "sqnr_db=25",
    ),
    "a drop of what has none": (
        "evaluate --max-drop sqnr_db=1",
        "PTQ-GATE-001",
        "has no drop",
        "--min sqnr_db",
    ),
    "a misspelt option": ("calibrate --mehtod max", "PTQ-USAGE-001", "(did you mean '--method'?)", "--help"),
    "an option of another command": (
        "export --samples 3",
        "PTQ-USAGE-001",
        "no option '--samples'",
        "--set calibration.samples=3",
    ),
    "a misspelt command": ("calbrate model.onnx", "PTQ-USAGE-001", "(did you mean 'calibrate'?)", "quantize"),
    "a word too many": ("calibrate a b", "PTQ-USAGE-001", "unexpected extra argument (b)", "--help"),
    "no report": ("gate", "PTQ-USAGE-001", "missing argument 'REPORT'", "--help"),
    "an option without its value": (
        "calibrate --data",
        "PTQ-USAGE-001",
        "'--data' requires an argument",
        "--help",
    ),
}


@each_case("words, code, says, hint", FLAGS.values(), ids=FLAGS.keys())
def test_a_bad_flag_is_refused(refuse: Any, words: str, code: str, says: str, hint: str) -> None:
    refuse(words, code, says, hint=hint)


def test_names_that_are_no_text_are_refused(folder: Path, ptq: Any) -> None:
    name = os.fsdecode(b"model\xff.onnx")
    (folder / name).write_bytes((folder / "model.onnx").read_bytes())
    outcome = ptq("calibrate", name, "--data", "calib.npz")
    assert outcome.status == 2
    assert "bug" not in outcome.err
