"""With ``--json``, stdout is one JSON document and nothing else, and its schema describes every key."""

import json
from collections.abc import Iterator
from pathlib import Path

import click
import jsonschema
import pytest

from ptq_cli.cli.commands.recipe import FILES, JSON_COMMANDS
from ptq_cli.cli.main import cli
from tests.e2e.conftest import Ptq, Refuse

DOCS = Path(__file__).parents[2] / "docs"
PRINTED: dict[str, tuple[str, int]] = {
    "calibrate": ("calibrate model.onnx --data calib.npz", 0),
    "export": ("export --onnx", 0),
    "export, float": ("export --float model.onnx --data calib.npz -o float.onnx", 0),
    "evaluate": ("evaluate", 0),
    "evaluate, missed": ("evaluate --min sqnr_db=99", 3),
    "evaluate, a shard": ("evaluate --shard 1/2 --set data.batch_size=4", 0),
    "quantize": ("quantize model.onnx --data calib.npz", 0),
    "quantize, missed": ("quantize model.onnx --data calib.npz --eval-data eval.npz --min sqnr_db=99", 3),
    "verify": ("verify", 0),
    "drift": ("drift eval.npz", 0),
    "repair": ("repair ptq-run/model_int8.onnx", 0),
    "inspect": ("inspect model.onnx", 0),
    "inspect, a run": ("inspect", 0),
    "inspect, a tensor": ("inspect --tensor relu", 0),
    "inspect, PyTorch": ("inspect model.pt --arch model.py:build --data calib.npz", 0),
    "gate": ("gate ptq-run/report.json --min sqnr_db=1", 0),
    "gate, missed": ("gate ptq-run/report.json --min sqnr_db=99", 3),
    "report": ("report", 0),
    "report, two": ("report ptq-run/report.json ptq-run/report.json", 0),
    "report, several": ("report ptq-run ptq-run ptq-run", 0),
    "recipe init": ("recipe init model.onnx", 0),
    "recipe check": ("recipe check ptq-run/recipe.toml", 0),
    "recipe keys": ("recipe keys", 0),
}
# Tests that run what takes long, with the same check of the document.
ELSEWHERE = {
    "analyze": "test_dynamic.py",
    "bench": "test_verify_bench.py",
    "merge": "test_shards.py",
    "tune": "test_tune.py",
}


@pytest.mark.parametrize(("words", "status"), PRINTED.values(), ids=PRINTED.keys())
def test_stdout_is_one_document(folder: Path, ptq: Ptq, words: str, status: int) -> None:
    outcome = ptq(f"{words} --json")
    assert (outcome.status, outcome.err) == (status, "")
    assert json.loads(outcome.out, parse_constant=pytest.fail)


def commands_with_json(group: click.Group, prefix: str = "") -> Iterator[str]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if any("--json" in parameter.opts for parameter in command.params):
            yield prefix + name
        if isinstance(command, click.Group):
            yield from commands_with_json(command, f"{prefix}{name} ")


def test_every_command_with_json_has_a_schema_that_a_test_uses() -> None:
    assert set(commands_with_json(cli)) == set(JSON_COMMANDS)
    assert {name.partition(",")[0] for name in PRINTED} | set(ELSEWHERE) == set(JSON_COMMANDS)
    for command, name in ELSEWHERE.items():
        text = (Path(__file__).parent / name).read_text(encoding="utf-8")
        assert "--json" in text and command in text


def test_every_schema_is_printed(ptq: Ptq, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for name in (*JSON_COMMANDS, *FILES, "ptq.toml"):
        schema = json.loads(ptq("recipe", "schema", *name.split()).out)
        jsonschema.validators.validator_for(schema).check_schema(schema)
    assert ptq("recipe schema").out == ptq("recipe schema ptq.toml").out
    assert ptq("recipe", "schema", "report.json", "-o", str(tmp_path / "report.schema.json")).status == 0
    assert (tmp_path / "report.schema.json").read_text() == (DOCS / "report.schema.json").read_text()


def test_a_schema_allows_new_keys_and_no_other_types(ptq: Ptq) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(ptq("recipe schema gate").out))
    validator.validate({"verdict": "no gate", "gates": [], "of a later version": 1})
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({"verdict": "maybe", "gates": []})


def test_a_document_that_is_not_there_is_refused(refuse: Refuse) -> None:
    refuse(
        "recipe schema quantise", "PTQ-RECIPE-004", "unknown document 'quantise' (did you mean 'quantize'?)"
    )


def test_onnx_runtime_prints_nothing_on_stdout(folder: Path, ptq: Ptq) -> None:
    path = folder / "ptq-run/model_int8.onnx"
    content = path.read_bytes()
    # An operator that is no UTF-8: ONNX Runtime's Python layer would say so on stdout, and try again.
    path.write_bytes(content.replace(b"QuantizeLinear", b"QuantizeL\xffnear"))
    assert path.read_bytes() != content
    outcome = ptq("evaluate --json")
    assert (outcome.status, outcome.out) == (2, "")
