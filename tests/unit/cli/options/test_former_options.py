"""An option that is gone says which key sets what it set."""

import pytest

from ptq_cli.cli.main import run
from ptq_cli.terminal.options.former_options import KEYS

USED = {
    "inspect m --mean 0.5": "--set image.mean=0.5",
    "quantize m --mean=0.5,1": "--set image.mean=0.5,1",
    "quantize m --no-latency": "--set evaluation.latency=false",
    "quantize m --latency": "--set evaluation.latency=true",
    "quantize m --restart": "--set run.restart=true",
    "quantize m --no-evaluate": "--set run.evaluate=false",
    "export --weight-step": "--set weights.step=VALUE",
    "export --weight-integer -1": "--set weights.integer=-1",
    "quantize m --checkpoint-every 5": "--set runtime.checkpoint_every=5",
    "calibrate m --activation-axis conv*=1": "--set 'calibration.activation_axis.conv*=1'",
    "quantize m --max-regression": "--set gate.max_regression.NAME=VALUE",
    "export --include stages.*": "--override 'stages.*:quantize=true'",
    "export --exclude-op Gemm": "--override :op=Gemm,quantize=false",
    "export --exclude-op": "--override :op=PATTERN,quantize=false",
    "drift --data new.npz": "new.npz without --data",
    "quantize --model": "MODEL without --model",
    "tune m --serve-batch 8": "--set export.serve_batch=8",
}


def test_a_former_option_names_its_key_and_the_value_that_was_typed(capsys):
    for words, instead in USED.items():
        command, *rest = words.split()
        option = next(word for word in rest if word.startswith("--")).partition("=")[0]
        assert run(words.split()) == 2, words
        assert capsys.readouterr().err == (
            f"error PTQ-USAGE-001: there is no option '{option}' of 'ptq {command}'\nhint: use {instead}\n"
        )


def test_every_former_option_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    for name, key in KEYS.items():
        option = f"--{name.replace('_', '-')}"
        if name in ("accuracy_level", "restart", "evaluate", "thumbnails"):
            continue  # Keys that ptq bench measures several of, and that hold for one command.
        run(["bench", option])
        said = capsys.readouterr().err
        assert f"there is no option '{option}'" not in said or f"--set {key}" in said


def test_a_command_without_settings_has_nothing_instead(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("gate report.json --mean 0.5", "inspect m --restart", "analyze --exclude-op Gemm"):
        assert run(words.split()) == 2
        assert "--help to see what it accepts" in capsys.readouterr().err
