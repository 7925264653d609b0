"""Code that a recipe of somebody else's names does not run, whatever command reads it; a user's own does."""

import importlib.util
import py_compile
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch

import ptq_cli
from ptq_cli.cli.main import cli, run
from tests.e2e.conftest import ARCHITECTURE, SAMPLES, Outcome, Ptq

CODE = f"""\
from pathlib import Path

Path(__file__).with_name("it-ran").touch()
{ARCHITECTURE}

def batches():
    import numpy as np
    random = np.random.default_rng(0)
    for _ in range(3):
        yield {{"x": random.standard_normal((4, 3, 8, 8)).astype(np.float32), "label": np.arange(4)}}


others = batches


def margin(output, labels, scale=1.0):
    return scale * output.max(axis=1)
"""
RECIPE = """\
[model]
path = "model.pt"
arch = "own.py:build"
[calibration]
data = "own.py:batches"
[evaluation]
data = "own.py:batches"
metrics = ["own.py:margin"]
latency = false
"""
# Modules that a folder may have under the names of others.
SHADOWS = ("numpy", "onnx", "pyarrow", "torchmetrics", "tokenizers", "openvino", "tomllib")
MAKE = (
    "calibrate model.pt --arch own.py:build --data own.py:batches --recover none",
    "export --recover none",
    "evaluate --eval-data own.py:batches --metric own.py:margin --set evaluation.latency=false",
    "evaluate --eval-data own.py:batches --metric own.py:margin --set evaluation.latency=false --shard 1/1",
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with code, a recipe that names it, and a run, as their author has made them."""
    folder = tmp_path_factory.mktemp("author") / "project"
    folder.mkdir()
    (folder / "own.py").write_text(CODE)
    names: dict[str, object] = {"__file__": str(folder / "own.py")}
    exec(CODE, names)
    torch.manual_seed(0)
    torch.save(names["build"]().state_dict(), folder / "model.pt")  # type: ignore[operator]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PTQ_CONFIG_DIR", str(folder.parent / "configuration"))
        for words in MAKE:
            assert run(words.split()) == 0, words
    (folder / "it-ran").unlink()
    (folder / "ptq.toml").write_text(RECIPE)
    np.savez(folder / "eval.npz", x=np.zeros((4, 3, 8, 8), np.float32), label=np.arange(4))
    for name in SHADOWS:
        (folder / f"{name}.py").write_text(CODE)
    yield folder


@pytest.fixture
def cloned(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, which is the current one, of a user who trusts nothing yet."""
    copy = tmp_path / "cloned"
    shutil.copytree(project, copy)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("PTQ_CONFIG_DIR", str(tmp_path / "configuration"))
    monkeypatch.delitem(sys.modules, "own", raising=False)  # of another test's folder
    return copy


# Each command in a folder that was cloned, with its ``ptq.toml`` and its ``ptq-run``.
INSIDE = {
    "analyze": "analyze",
    "bench": "bench --runs 2",
    "bench, operators": "bench --operators --output profile.json",
    "calibrate": "calibrate",
    "drift": "drift eval.npz",
    "evaluate": "evaluate",
    "export": "export --set recovery.rungs=round",
    "export, float": "export --float --output float.onnx",
    "gate": "gate ptq-run/report.json --min sqnr_db=1",
    "inspect": "inspect model.pt",
    "inspect, a run": "inspect",
    "inspect, a tensor": "inspect --tensor x",
    "merge": "merge",
    "quantize": "quantize --set run.evaluate=true",
    "recipe check": "recipe check",
    "recipe init": "recipe init ptq-run/model.float.onnx --output new.toml",
    "recipe keys": "recipe keys",
    "recipe schema": "recipe schema",
    "repair": "repair ptq-run/model_int8.onnx",
    "report": "report",
    "report, two": "report ptq-run/report.json ptq-run/report.json",
    "tune": "tune --budget sqnr_db=1",
    "verify": "verify",
}
RUN = " --run cloned/ptq-run"
OWN = f"cloned/model.pt --arch mine.py:build{RUN}"
# Each command in the folder above it: a run directory is named, or a model beside which a recipe lies.
OUTSIDE = {
    **INSIDE,
    **{
        name: f"{INSIDE[name]}{RUN}"
        for name in ("analyze", "inspect, a run", "evaluate", "inspect, a tensor", "export", "report")
    },
    "calibrate": f"calibrate {OWN} --data cloned/eval.npz",
    "bench": "bench cloned/ptq-run/model.float.onnx cloned/ptq-run/model_int8.onnx --runs 2",
    "bench, operators": "bench --operators cloned/ptq-run/model.float.onnx --output profile.json",
    "export, float": "export --float cloned/ptq-run/model.float.onnx --output float.onnx",
    "repair": "repair cloned/ptq-run/model_int8.onnx",
    "report, two": "report cloned/ptq-run/report.json cloned/ptq-run/report.json",
    "drift": f"drift cloned/eval.npz{RUN}",
    "gate": "gate cloned/ptq-run/report.json --min sqnr_db=1",
    "inspect": "inspect cloned/ptq-run/model.float.onnx",
    "merge": "merge cloned/ptq-run",
    "quantize": f"quantize {OWN} --data cloned/eval.npz",
    "recipe check": "recipe check cloned/ptq-run/recipe.toml cloned/ptq-run/report.toml",
    "recipe init": "recipe init cloned/ptq-run/model.float.onnx --output new.toml",
    "tune": f"tune {OWN} --budget sqnr_db=1",
    "verify": "verify cloned/ptq-run/model_int8.onnx",
}


def commands() -> Iterator[str]:
    context = click.Context(cli)
    for name in cli.list_commands(context):
        found = cli.get_command(context, name)
        inner = [f"{name} {each}" for each in found.commands] if isinstance(found, click.Group) else [name]
        yield from inner


def test_no_command_is_forgotten() -> None:
    assert INSIDE.keys() == OUTSIDE.keys()
    assert set(commands()) == {name.partition(",")[0] for name in INSIDE}


def require_refusal(outcome: Outcome, is_refused: bool) -> None:
    if not is_refused:
        assert outcome.status == 0, outcome
        return
    assert outcome.status == 2, outcome
    error, hint = outcome.err.splitlines()[-2:]
    assert error.startswith("error PTQ-TRUST-001: "), outcome
    assert "--trust-code" in hint


REFUSED_INSIDE = {
    "analyze",
    "bench",
    "bench, operators",
    "calibrate",
    "evaluate",
    "export",
    "export, float",
} | {*("inspect", "merge", "quantize", "tune", "verify")}
# Those that would read the data, run the metric, or build the model; others need no code of a recipe.
REFUSED_OUTSIDE = {"analyze", "bench", "evaluate", "export", "merge", "tune", "verify"}


@pytest.mark.parametrize("name", INSIDE)
def test_a_cloned_folder_runs_no_code(name: str, cloned: Path, ptq: Ptq) -> None:
    require_refusal(ptq(INSIDE[name]), name in REFUSED_INSIDE)
    assert not (cloned / "it-ran").exists()


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_run_or_a_recipe_beside_a_model_runs_no_code(
    name: str, cloned: Path, ptq: Ptq, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(cloned.parent)
    Path("mine.py").write_text(ARCHITECTURE)
    require_refusal(ptq(OUTSIDE[name]), name in REFUSED_OUTSIDE)
    assert not (cloned / "it-ran").exists()


class Pickled:
    """An object that leaves a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("it-ran"),)


ITS_DATA = '[calibration]\ndata = "eval.npz"\n[evaluation]\n'
DEFINED = '[[metric]]\nmetric = "own.py:margin"\narguments = { scale = 2.0 }'
# Each setting that leads to code, a command that follows it, and a ``ptq.toml``.
SETTINGS = {
    "calibration.data": (
        "calibrate ptq-run/model.float.onnx --run new",
        '[calibration]\ndata = "own.py:batches"',
    ),
    "evaluation.data": ("evaluate", f'{ITS_DATA}data = "./own.py:others"'),
    "evaluation.metrics": ("evaluate", f'{ITS_DATA}data = "eval.npz"\nmetrics = ["own.py:margin[linear]"]'),
    "metric.metric": ("evaluate", f'{ITS_DATA}data = "eval.npz"\n{DEFINED}'),
    "model.arch": ("export --float -o new.onnx", '[model]\npath = "model.pt"\narch = "own:build"'),
    "model.trust_pickle": ("export --float -o new.onnx", '[model]\npath = "pickle.pt"\ntrust_pickle = true'),
    "model.path": ("export --float -o new.onnx", '[model]\npath = "script.pt"'),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_each_setting_is_refused_and_then_remembered(setting: str, cloned: Path, ptq: Ptq) -> None:
    words, text = SETTINGS[setting]
    (cloned / "ptq.toml").write_text(text)
    torch.save(Pickled(), "pickle.pt")
    shutil.copy(SAMPLES / "spoken_digits_transformer" / "model.torchscript.pt", "script.pt")
    words = (
        f"{words} --set model.input_shape.x=1,3"
        if "--float" in words
        else f"{words} --set evaluation.latency=false"
    )
    outcome = ptq(words)
    assert not (cloned / "it-ran").exists()
    require_refusal(outcome, True)
    assert f"error PTQ-TRUST-001: ptq.toml: '{setting}' would run '" in outcome.err
    assert "PTQ-TRUST" not in ptq(f"{words} --trust-code").err
    assert (cloned / "it-ran").exists() or setting == "model.path"
    assert "PTQ-TRUST" not in ptq(words).err


def test_code_that_has_changed_is_asked_for_again(cloned: Path, ptq: Ptq) -> None:
    assert ptq("inspect model.pt --trust-code").status == 0
    with (cloned / "own.py").open("a") as stream:
        stream.write("# changed\n")
    outcome = ptq("inspect model.pt")
    require_refusal(outcome, True)
    assert "'model.arch' would run 'own.py:build', which has changed since you trusted it" in outcome.err


def test_what_the_user_named_needs_no_confirmation_later(cloned: Path, ptq: Ptq) -> None:
    (cloned / "ptq.toml").unlink()
    for words in (*MAKE[:3], "evaluate --set evaluation.latency=false", "verify", "bench --runs 2"):
        assert ptq(words).status == 0, words
    # Another function of the same file, and the same with other arguments, are other code.
    (cloned / "ptq.toml").write_text(SETTINGS["metric.metric"][1])
    require_refusal(ptq("evaluate"), True)
    assert ptq("evaluate --recipe ptq.toml --set evaluation.latency=false").status == 0
    assert ptq("evaluate --set evaluation.latency=false").status == 0


def test_a_link_to_code_is_the_code_that_it_leads_to(cloned: Path, ptq: Ptq) -> None:
    assert ptq("inspect model.pt --trust-code").status == 0
    (cloned / "it-ran").unlink()
    (cloned / "own.py").rename("other.py")
    (cloned / "own.py").symlink_to("other.py")
    require_refusal(ptq("inspect model.pt"), True)
    assert not (cloned / "it-ran").exists()


@pytest.mark.parametrize("code", ["own.py", "own"])
def test_what_was_compiled_before_is_not_trusted(code: str, cloned: Path, ptq: Ptq) -> None:
    (cloned / "ptq.toml").write_text(
        f'[model]\npath = "model.pt"\narch = "{code}:build"\n[model.input_shape]\nx = [1, 3, 8, 8]'
    )
    (cloned / "own.py").write_text(CODE.replace(".touch()", ""))
    assert ptq("inspect model.pt --trust-code").status == 0
    (cloned / "evil.py").write_text(CODE)
    cached = importlib.util.cache_from_source(str(cloned / "own.py"))
    py_compile.compile("evil.py", cached, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert ptq("inspect model.pt").status == 0
    assert not (cloned / "it-ran").exists()


def test_python_may_name_code_and_trust_a_run(cloned: Path) -> None:
    (cloned / "ptq.toml").unlink()
    with pytest.raises(ptq_cli.PtqError, match="ata' would run") as caught:
        ptq_cli.evaluate(latency=False)
    assert caught.value.hint.startswith("read it, and call it in a block of ptq_cli.trust_code() if")
    with ptq_cli.trust_code():
        ptq_cli.evaluate(latency=False)
    assert ptq_cli.evaluate(latency=False).report.evaluation.samples == 12


def test_a_home_that_cannot_be_written_stops_nothing(
    cloned: Path, ptq: Ptq, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTQ_CONFIG_DIR", str(cloned / "own.py"))
    assert ptq("inspect model.pt --trust-code").status == 0
    require_refusal(ptq("inspect model.pt"), True)
