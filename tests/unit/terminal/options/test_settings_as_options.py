"""A setting that is typed as an option says how to set it."""

import shlex

import pytest

from ptq_cli.cli.main import run
from ptq_cli.recipe.assignments import parse_assignments
from ptq_cli.terminal.options.settings_as_options import KEYS

USED = {
    "inspect m --mean 0.5": "--set image.mean=0.5",
    "quantize m --mean=0.5,1": "--set image.mean=0.5,1",
    "quantize m --no-latency": "--set evaluation.latency=false",
    "quantize m --latency": "--set evaluation.latency=true",
    "quantize m --restart": "--set run.restart=true",
    "quantize m --no-evaluate": "--set run.evaluate=false",
    "quantize m --checkpoint-every 5": "--set runtime.checkpoint_every=5",
    "quantize m --max-regression": "--set gate.max_regression.NAME=VALUE",
    "export --include stages.*": "--set 'override=stages.*:quantize=true'",
    "export --exclude-op Gemm": "--set override=:op=Gemm,quantize=false",
    "export --exclude-op": "--set override=:op=PATTERN,quantize=false",
    "export --override head.*:weights.bits=4": "--set 'override=head.*:weights.bits=4'",
    "drift --data new.npz": "new.npz without --data",
    "quantize --model": "MODEL without --model",
    "tune m --serve-batch 8": "--set export.serve_batch=8",
    "quantize m --rename img/x.1=x": "--set data.rename.img/x.1=x",
    "calibrate m --batch-axis none": "--set data.batch_axis.NAME=VALUE",
    "calibrate m --batch-axis state.1=none": "--set data.batch_axis.state.1=none",
    "tune m --carry present.*=past.*": "--set 'data.carry.present.*=past.*'",
    "calibrate m --steps 8": "--set data.steps=8",
    "quantize m --tokenizer t.json": "--set text.tokenizer=t.json",
    "verify m --input scale=[1,2]": "--set 'model.inputs.scale=[1,2]'",
    "bench m --input-shape /in.0=1,3": "--set model.input_shape./in.0=1,3",
    "quantize m --batch-size 8": "--set data.batch_size=8",
    "evaluate --batch-size=8": "--set data.batch_size=8",
    "quantize m --max-ratio perplexity=1.02": "--set gate.max_ratio.perplexity=1.02",
    "gate r.json --max-drift sqnr_db[a]=3": "--set 'gate.max_drift.sqnr_db[a]=3'",
    "export --threads 1": "--set runtime.threads=1",
    "recipe init m --trust-pickle": "--set model.trust_pickle=true",
}


def test_an_option_names_its_key_and_the_value_that_was_typed(capsys):
    for words, instead in USED.items():
        option = next(word for word in words.split() if word.startswith("--")).partition("=")[0]
        assert run(words.split()) == 2, words
        command = "recipe init" if words.startswith("recipe") else words.split()[0]
        assert capsys.readouterr().err == (
            f"error PTQ-USAGE-001: there is no option '{option}' of 'ptq {command}'\nhint: use {instead}\n"
        )
        given = [word for word in shlex.split(instead) if word != "--set"]
        if "--set" in instead and "VALUE" not in instead:
            parse_assignments(given)


def test_every_setting_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    for name, keys in KEYS.items():
        option = f"--{name.replace('_', '-')}"
        if name in ("restart", "evaluate"):
            continue  # Keys that hold for one command.
        run(["bench", option])
        said = capsys.readouterr().err
        assert f"there is no option '{option}'" not in said or f"--set {keys[0]}" in said


def test_a_command_without_such_settings_has_nothing_instead(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("gate report.json --mean 0.5", "inspect m --restart", "merge a --batch-size 8"):
        assert run(words.split()) == 2
        assert "--help to see what it accepts" in capsys.readouterr().err


def test_only_one_section_may_be_set_where_no_other_has_an_effect(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gate", "report.json", "--set", "amax.bins=8"]) == 2
    assert capsys.readouterr().err == (
        "error PTQ-USAGE-001: --set amax.bins has no effect on ptq gate\nhint: it takes the keys of [gate]\n"
    )
