"""A shell completes commands, options, and the names that ptq knows; nothing heavy is imported for it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ptq_cli.amax.method_registry import METHODS
from ptq_cli.cli.main import COMMANDS, run
from ptq_cli.evaluation.metrics.metric_registry import LABEL_METRICS, PAIR_METRICS, REQUESTED_COMPARISONS
from ptq_cli.plan.target.target_file import target_names
from ptq_cli.recipe.quantizer_families import FAMILIES
from ptq_cli.recipe.recipe_layers import preset_names
from tests.each_case import each_case

Complete = Callable[..., list[str]]
HEAVY = {"torch", "onnx", "onnxruntime", "onnx_ir", "onnxscript", "numba", "rich", "tqdm"}


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complete:
    """Return what ptq answers a shell that completes the last of some words."""

    def answer(words: str, shell: str = "bash") -> list[str]:
        for name, value in asked(words, shell).items():
            monkeypatch.setenv(name, value)
        assert run([]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if line]

    return answer


def asked(words: str, shell: str) -> dict[str, str]:
    begun = "" if words.endswith(" ") else words.rsplit(maxsplit=1)[-1]
    number = str(len(words.split()) - bool(begun))
    return {
        "_PTQ_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": begun if shell == "fish" else number,
    }


def plain(names: object, key: str = "") -> list[str]:
    return [f"plain,{key}{name}" for name in names]  # type: ignore[attr-defined]


FILES, FOLDERS = ["file,"], ["dir,"]
COMPLETED: dict[str, list[str]] = {
    "ptq ev": plain(["evaluate"]),
    "ptq calibration ": plain(["show"]),
    "ptq help ": plain(COMMANDS),
    "ptq help calibration ": plain(["show"]),
    "ptq help gate ": [],
    "ptq help nonsense ": [],
    "ptq gate --max-dro": plain(["--max-drop"]),
    "ptq quantize --amax ": plain(["auto", *METHODS]),
    "ptq quantize --amax=e": plain(["entropy"]),
    "ptq explain x --set amax.weight_method=": plain(METHODS, "amax.weight_method="),
    "ptq explain x --set amax.weight_": plain(["amax.weight_method="]),
    "ptq quantize --set run.": plain(f"run.{name}=" for name in ("restart", "evaluate", "thumbnails")),
    "ptq tune --set run.s": [],
    "ptq inspect --set override.": [],
    "ptq evaluate --set gate.strict=": plain(["true", "false"], "gate.strict="),
    "ptq recipe keys ex": plain(["export"]),
    "ptq recipe keys export.": plain(
        ["export.prefer", "export.serve_batch", "export.profile", "export.soc_model"]
    ),
    "ptq calibrate --method ": plain(["histogram", "max"]),
    "ptq calibrate --set runtime.device=c": plain(["cpu", "cuda"], "runtime.device="),
    "ptq quantize --target ": plain(target_names()),
    "ptq export --target ort-": plain(["ort-cpu"]),
    "ptq verify --target my": ["file,my"],
    "ptq evaluate --metric ": plain([*LABEL_METRICS, *REQUESTED_COMPARISONS, *PAIR_METRICS]),
    "ptq analyze --metric metrics.py": ["file,metrics.py"],
    "ptq inspect --preset ": plain(preset_names()),
    "ptq export --set weights.quantizer=": plain(FAMILIES, "weights.quantizer="),
    "ptq export --set activations.quantizer=": plain(
        ["scaled", "fixed_point", "step"], "activations.quantizer="
    ),
    "ptq export --set weights.granularity=": plain(["tensor", "channel"], "weights.granularity="),
    "ptq export --set weights.alpha=": plain(["none", "auto_po2"], "weights.alpha="),
    "ptq export --set activations.dtype=ui": plain(["uint8", "uint16"], "activations.dtype="),
    "ptq quantizers show ": plain(FAMILIES),
    "ptq calibrate --set image.mode=": plain(["RGB", "BGR", "L"], "image.mode="),
    "ptq calibrate --set image.layout=": plain(["NCHW", "NHWC"], "image.layout="),
    "ptq calibration show --sort ": plain(["clipped", "range", "name"]),
    "ptq inspect ": FILES,
    "ptq calibrate --data ": FILES,
    "ptq quantize --eval-data ": FILES,
    "ptq quantize --arch ": FILES,
    "ptq quantize --output ": FILES,
    "ptq gate report.json --baseline ": FILES,
    "ptq export --recipe ": FILES,
    "ptq export --run ": FOLDERS,
}


@each_case("words", COMPLETED)
def test_a_shell_completes(words: str, complete: Complete) -> None:
    assert complete(words) == COMPLETED[words]


def test_nothing_heavy_is_imported_to_complete_any_of_it() -> None:
    asking = [asked(words, "bash") for words in COMPLETED]
    code = f"""
import os, sys
from ptq_cli.cli.main import run
for variables in {asking!r}:
    os.environ.update(variables)
    run([])
print(*sys.modules, file=sys.stderr)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(result.stderr.split())
    assert "ptq_cli.terminal.options.completion" in modules
    assert not HEAVY & modules


def in_parts(lines: list[str]) -> list[str]:
    return "\n".join(lines).replace("plain,", "plain\n").replace("\t", "\n").split("\n")


def test_zsh_and_fish_show_what_a_quantizer_is(complete: Complete) -> None:
    meaning = FAMILIES["dorefa"].meaning
    assert complete("ptq quantizers show do", "zsh") == ["plain", "dorefa", meaning]
    # click 8.5 writes an item in one line, and 8.4 in several.
    assert in_parts(complete("ptq quantizers show do", "fish")) == ["plain", "dorefa", meaning]
    said = "Method for weight ranges, from the weights themselves."
    assert in_parts(complete("ptq export --set amax.w", "fish")) == ["plain", "amax.weight_method=", said]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_with_the_script_that_ptq_prints(tmp_path: Path) -> None:
    scripts = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    script = subprocess.run(
        ["ptq"],
        env={**environment, "_PTQ_COMPLETE": "bash_source"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (tmp_path / "ptq").write_text(script, encoding="utf-8")
    line = """source ./ptq
COMP_WORDS=(ptq quantize --target ort); COMP_CWORD=3
_ptq_completion ptq; echo "${COMPREPLY[@]}"; complete -p ptq
COMPREPLY=(); COMP_WORDS=(ptq quantize --set amax.bins = 8 --set text.tail = d); COMP_CWORD=9
_ptq_completion ptq; echo "${COMPREPLY[@]}"
COMPREPLY=(); COMP_WORDS=(ptq quantize --set text.pairs =); COMP_CWORD=4
_ptq_completion ptq; echo "${COMPREPLY[@]}"
"""
    result = subprocess.run(
        ["bash", "--norc", "-c", line],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == ("ort-cpu\ncomplete -o nosort -F _ptq_completion ptq\ndrop\njoined apart\n")
