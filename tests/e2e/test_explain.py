"""``ptq inspect`` of a finished run, and of one of its tensors."""

import builtins
import json
import os
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image

from ptq_cli.amax.method_registry import METHODS
from tests.each_case import each_case, table

HOSTILE = "evil\x1b[2J\x1b]0;title\x07[red]$x_[/red]\nsecond --> <line> &"


@pytest.fixture
def only_ranges(folder: Path, ptq: Any) -> Path:
    assert ptq("calibrate model.onnx --data calib.npz --method max").status == 0
    return folder


@pytest.fixture
def hostile(folder: Path, ptq: Any) -> Path:
    proto = onnx.load(folder / "model.onnx")
    for node in proto.graph.node:
        node.name = f"{node.name} {HOSTILE}"
        node.input[:] = [name if "." in name else f"{name} {HOSTILE}" for name in node.input]
        node.output[:] = [f"{name} {HOSTILE}" for name in node.output]
    proto.graph.input[0].name += f" {HOSTILE}"
    proto.graph.output[0].name += f" {HOSTILE}"
    onnx.save(proto, folder / "hostile.onnx")
    with np.load(folder / "calib.npz") as arrays:
        np.save(folder / "calib.npy", arrays["x"])
    assert ptq("calibrate hostile.onnx --data calib.npy").status == 0
    return folder


@pytest.fixture
def dead(folder: Path, ptq: Any) -> Path:
    proto = onnx.load(folder / "model.onnx")
    for tensor in proto.graph.initializer[:2]:
        tensor.CopyFrom(numpy_helper.from_array(np.zeros(list(tensor.dims), np.float32), tensor.name))
    onnx.save(proto, folder / "dead.onnx")
    assert ptq("calibrate dead.onnx --data calib.npz").status == 0
    return folder


def shown_json(outcome: Any) -> dict[str, Any]:
    assert outcome.status == 0, outcome
    assert outcome.err == ""
    found: dict[str, Any] = json.loads(outcome.out)
    return found


def test_show_has_every_tensor_and_method(folder: Path, ptq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    outcome = ptq("inspect")

    assert outcome.status == 0 and outcome.err == ""
    for text in ("x", "relu", *METHODS, "clipped", "zeros", "range", "* marks what ptq export uses"):
        assert text in outcome.out
    assert "statistics: histogram" in outcome.out.splitlines()[0]


SORTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "name": lambda item: item["name"],
    "range": lambda item: item["low"] - item["high"],
    "clipped": lambda item: -item["methods"]["percentile"]["clipped"][1] / item["count"],
}


@pytest.mark.parametrize("sort", SORTS)
def test_show_sorts(folder: Path, ptq: Any, sort: str) -> None:
    found = shown_json(ptq(f"inspect --set amax.percentile=90 --sort {sort} --json"))["tensors"]

    assert found == sorted(found, key=SORTS[sort])
    assert {item["chosen"] for item in found} == {"percentile"}


def test_the_scale_is_the_exported_one(folder: Path, ptq: Any) -> None:
    assert ptq("export --amax mse").status == 0
    found = shown_json(ptq("inspect --tensor x --amax mse --json"))

    constants = {
        item.name: numpy_helper.to_array(item)
        for item in onnx.load("ptq-run/model_int8.onnx").graph.initializer
    }
    node = next(
        node
        for node in onnx.load("ptq-run/model_int8.onnx").graph.node
        if node.op_type == "QuantizeLinear" and node.input[0] == "x"
    )
    assert found["tensor"]["chosen"] == "mse"
    assert found["tensor"]["methods"]["mse"]["scale"] == float(constants[node.input[1]])
    assert found["tensor"]["methods"]["mse"]["zero_point"] == int(constants[node.input[2]])


def test_explain_tells_all(folder: Path, ptq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    outcome = ptq("inspect --tensor relu")

    assert outcome.status == 0 and outcome.err == ""
    out = outcome.out
    assert out.startswith("relu: float32[")
    assert "becomes:    uint8 with a zero point" in out
    assert "comes from: relu (Relu, integer)" in out
    assert "read by:    pool (GlobalAveragePool, integer)" in out or "read by:    pool (" in out
    assert "12 samples" in out and "zeros (" in out
    for name in METHODS:
        assert sum(line.split()[:1] == [name] for line in out.splitlines()) == 2, (
            "in the drawing and the table"
        )


def test_a_layers_name_means_its_tensor(folder: Path, ptq: Any) -> None:
    named = onnx.load("ptq-run/model.float.onnx")
    node = next(node for node in named.graph.node if node.op_type == "Relu")
    node_name, tensor = node.name, node.output[0]
    assert shown_json(ptq("inspect", "--tensor", node_name, "--json"))["tensor"]["name"] == tensor
    assert "'conv' is in the model but was not measured" in ptq("inspect --tensor conv").err


UNKNOWN = table("""
    inspect --tensor rleu        | no tensor 'rleu' was calibrated (did you mean 'relu'?)
    inspect --tensor zzzzzz      | no tensor 'zzzzzz' was calibrated
    inspect --tensor conv.weight | 'conv.weight' is in the model but was not measured
""")


@each_case("words, says", UNKNOWN)
def test_an_unknown_tensor_is_refused(refuse: Any, words: str, says: str) -> None:
    refuse(words, "PTQ-RECIPE-004", says, hint="ptq inspect --run ptq-run lists")


MISUSE = table("""
    inspect --tensor x --plot x.pdf            | PTQ-USAGE-001 | got 'x.pdf'
    inspect --tensor x --plot model.onnx/x.png | PTQ-FILE-002  | cannot write
    inspect --tensor x --samples 3             | PTQ-USAGE-001 | --samples
""")


@each_case("words, code, says", MISUSE)
def test_misuse_is_refused(refuse: Any, words: str, code: str, says: str) -> None:
    refuse(words, code, says)


@pytest.mark.parametrize("words", ["inspect", "inspect --tensor x"])
def test_with_ranges_only_it_says_what_is_missing(only_ranges: Path, ptq: Any, words: str) -> None:
    outcome = ptq(words)

    assert outcome.status == 0
    assert "note: percentile, entropy and mse need histograms" in outcome.out
    assert "--method histogram" in outcome.out
    found = shown_json(ptq(f"{words} --json"))
    assert found["missing"] == ["percentile", "entropy", "mse"]
    tensor = found["tensor"] if "tensors" not in found else found["tensors"][0]
    assert tensor["zeros"] is None and list(tensor["methods"]) == ["max"]
    assert tensor["methods"]["max"]["clipped"] == [0, 0]


def test_a_chosen_method_that_lacks_histograms_is_told(only_ranges: Path, ptq: Any) -> None:
    outcome = ptq("inspect --tensor x --amax entropy")

    assert outcome.status == 0
    assert "note: ptq export will fail: 'x' would use entropy" in outcome.out


def test_a_dead_tensor_is_named(dead: Path, ptq: Any) -> None:
    assert "note: 'relu' was 0 in every sample" in ptq("inspect").out
    outcome = ptq("inspect --tensor relu --plot dead.png")
    assert outcome.status == 0
    assert "no histogram: all values are 0" in outcome.out and "100 % zeros" in outcome.out


def test_a_hostile_name_can_be_typed_as_it_is_shown(hostile: Path, ptq: Any) -> None:
    name = f"relu {HOSTILE}"
    shown = "".join(character if character.isprintable() else "?" for character in name)
    for plot in ("evil.svg", "evil.png"):
        outcome = ptq("inspect", "--tensor", shown, "--plot", plot)
        assert outcome.status == 0, outcome
        assert outcome.out.startswith(f"{shown}: float32[")
        assert all(character.isprintable() or character == "\n" for character in outcome.out)
    assert ET.parse("evil.svg").getroot().tag.endswith("svg")


def test_plots_are_files_of_their_kind(folder: Path, ptq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("x.png", "x.svg", "again.svg"):
        outcome = ptq(f"inspect --tensor x --plot {name}")
        assert outcome.status == 0 and outcome.err == ""
        assert outcome.out.endswith(f"wrote {name}\n")
    with Image.open("x.png") as image:
        assert image.width > 1000
    assert ET.parse("x.svg").getroot().tag.endswith("svg")
    assert Path("x.svg").read_bytes() == Path("again.svg").read_bytes()
    assert shown_json(ptq("inspect --tensor x --plot y.svg --json"))["plot"] == "y.svg"


@pytest.mark.usefixtures("without_matplotlib")
def test_without_matplotlib_it_says_how_to_get_it(refuse: Any) -> None:
    refuse(
        "inspect --tensor x --plot x.png",
        "PTQ-USAGE-001",
        "needs matplotlib",
        hint="pip install 'ptq-cli[plot]'",
    )


def test_without_a_plot_matplotlib_is_not_imported(folder, ptq, monkeypatch):
    real = builtins.__import__

    def guarded(name: str, *arguments: Any, **options: Any) -> Any:
        assert not name.startswith("matplotlib")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", guarded)
    assert ptq("inspect --tensor x").status == 0


def test_a_sample_model(digits: Path, ptq: Any) -> None:
    assert ptq("calibrate model.onnx --samples 32 --run explained").status == 0
    found = shown_json(ptq("inspect --run explained --json"))
    assert len(found["tensors"]) > 20
    for tensor in found["tensors"][::6]:
        assert ptq("inspect", "--tensor", tensor["name"], "--run", "explained").status == 0


@pytest.mark.nightly
def test_a_terminal_without_unicode_gets_plain_characters(folder, real_ptq):
    result = real_ptq(
        "inspect", "--tensor", "relu", cwd=folder, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )

    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii() and "relu" in result.stdout


def test_explain_names_the_columns_that_do_not_fit(folder, ptq, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    outcome = ptq("inspect --tensor relu")

    assert "by clipping, scale and zero point; --json has them" in outcome.err


OF_THE_OTHER = table("""
    inspect model.onnx --run ptq-run | PTQ-USAGE-001 | --run is about a run's calibration | leave MODEL out
    inspect model.onnx --tensor relu | PTQ-USAGE-001 | --tensor is about a run's | leave MODEL out
    inspect --depth 2 | PTQ-USAGE-001 | --depth is about the layers | ptq inspect MODEL
    inspect --plot x.png | PTQ-USAGE-001 | --plot draws one tensor | --tensor NAME
    inspect --tensor relu --sort name | PTQ-USAGE-001 | --sort orders a list | leave --sort out
    inspect --run nowhere | PTQ-RUN-001 | no calibration in 'nowhere' | ptq inspect MODEL
    report ptq-run ptq-run --run other | PTQ-USAGE-001 | --run is for one run | leave REPORTS out
    report --page x.html | PTQ-USAGE-001 | --page is for REPORTS | ptq report A B
    export model.onnx | PTQ-USAGE-001 | MODEL is for --float alone | the run directory
    export --float model.onnx | PTQ-USAGE-001 | --float needs an output | -o float.onnx
    export --float model.onnx -o f --prefer size | PTQ-USAGE-001 | --prefer is not for --float | leave it out
    bench --operators model.onnx | PTQ-USAGE-001 | --operators needs an output | -o FILE
    bench --operators a.onnx b.onnx -o p.json | PTQ-USAGE-001 | --operators measures one | once for each
    bench -o p.json | PTQ-USAGE-001 | --output is for the file of | --operators MODEL
""")


@each_case("words, code, says, hint", OF_THE_OTHER)
def test_an_option_of_the_commands_other_use_is_refused(
    refuse: Any, words: str, code: str, says: str, hint: str
) -> None:
    refuse(words, code, says, hint=hint)
