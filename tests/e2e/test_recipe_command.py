"""``ptq recipe``: a recipe for a model, what is wrong in one, and the schema for editors."""

import json
import tomllib
from pathlib import Path

import jsonschema
import onnx
import pytest

from ptq_cli.recipe.recipe_layers import CONFIGS
from ptq_cli.recipe.schema import SETTINGS
from ptq_cli.setup.recipes import names_of, recipe_schema
from tests.e2e.conftest import Ptq

ROOT = Path(__file__).parents[2]
DETECTOR = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N,3,32,48] images, int64 rate) => (float[N,3,32,48] y)
    { r = Cast<to=1>(rate) y = Mul(images, r) }"""


@pytest.fixture
def detector(folder: Path) -> Path:
    onnx.save(onnx.parser.parse_model(DETECTOR), folder / "detector.onnx")
    return folder / "detector.onnx"


def test_a_new_recipe_says_what_the_model_tells_and_asks_the_rest(detector: Path, ptq: Ptq) -> None:
    outcome = ptq("recipe init detector.onnx --data samples -o ptq.toml")
    assert outcome.status == 0, outcome.err
    assert outcome.out.startswith("wrote ptq.toml, with ")
    text = (detector.parent / "ptq.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text) == {
        "model": {"path": "detector.onnx"},
        "calibration": {"data": "samples"},
        "data": {},
        "image": {"layout": "NCHW", "resize": [32, 48], "mode": "RGB"},
        "quantization": {"target": "ort-cpu"},
        "evaluation": {},
        "gate": {},
    }
    assert "#   images: float32[?, 3, 32, 48]\n" in text
    assert '# inputs = { "rate" = 0 }\n' in text
    checked = ptq("recipe check")
    assert checked.out.splitlines() == ["ptq.toml is correct: 6 settings", "note: 'samples' is not there"]
    assert checked.err == "next: ptq quantize\n"


def test_a_recipe_with_a_model_and_no_data_is_not_ready(detector: Path, ptq: Ptq) -> None:
    made = ptq("recipe init detector.onnx")
    assert "note: 'calibration.data' is not set" in made.out
    assert json.loads(ptq("recipe init detector.onnx --force --json").out)["unset"] == ["calibration.data"]
    checked = ptq("recipe check")
    assert (checked.status, checked.out) == (2, "")
    assert checked.err.startswith("error PTQ-DATA-005: 'calibration.data' is not set in 'ptq.toml'")
    assert ptq("quantize").err.startswith("error PTQ-DATA-005: no calibration data was given")
    path = detector.parent / "ptq.toml"
    path.write_text(path.read_text(encoding="utf-8") + "min = { sqnr_db = 20 }\n", encoding="utf-8")
    text = path.read_text(encoding="utf-8").replace('# data = "calib.npz"', 'data = "calib.npz"')
    path.write_text(text, encoding="utf-8")
    assert "'evaluation.data' is not set in 'ptq.toml'" in ptq("recipe check").err
    # A model that computes its ranges at each run needs no data, and a recipe without a model is for several.
    for text in ("[model]\npath = 'm.onnx'\n[activations]\nmode = 'dynamic'\n", "[gate]\nmax_size = '1MB'\n"):
        path.write_text(text, encoding="utf-8")
        assert ptq("recipe check").status == 0
    assert ptq("recipe check").err == "next: ptq quantize MODEL --data PATH --eval-data PATH\n"


TOKENS = """<ir_version: 8, opset_import: ["" : 17]>
    g (int64[N,S] input_ids) => (float[N,S] y) { y = Cast<to=1>(input_ids) }"""


def test_a_new_recipe_asks_nothing_about_files_that_are_not_the_data(detector: Path, ptq: Ptq) -> None:
    onnx.save(onnx.parser.parse_model(TOKENS), detector.parent / "encoder.onnx")
    text = detector.parent / "ptq.toml"
    for model, section in (("detector.onnx", "image"), ("encoder.onnx", "text")):
        for data, asks in (("samples.npz", False), ("samples", True)):
            assert ptq(f"recipe init {model} --data {data} --force").status == 0
            assert (section in tomllib.loads(text.read_text(encoding="utf-8"))) == asks
    assert "# A .txt or .jsonl file of texts, " in text.read_text(encoding="utf-8")
    assert "images" not in text.read_text(encoding="utf-8")


def test_every_suggestion_is_correct_without_its_comment_sign(detector: Path, ptq: Ptq) -> None:
    ptq("recipe init detector.onnx -o ptq.toml")
    path = detector.parent / "ptq.toml"
    lines = path.read_text(encoding="utf-8").splitlines()
    settings = [line.removeprefix("# ") if " = " in line else line for line in lines]
    path.write_text("\n".join(settings), encoding="utf-8")
    outcome = ptq("recipe check --json")
    assert outcome.status == 0, outcome.err
    (found,) = json.loads(outcome.out)["recipes"]
    assert {"gate.max_drop.top1", "image.mean", "model.inputs"} <= {
        *found["settings"],
        *(f"gate.max_drop.{name}" for name in found["settings"].get("gate.max_drop", {})),
    }


def test_a_recipe_that_is_there_is_replaced_only_by_force(detector: Path, ptq: Ptq) -> None:
    path = detector.parent / "ptq.toml"
    path.write_text("[amax]\nmethod = 'max'\n", encoding="utf-8")
    refused = ptq("recipe init detector.onnx")
    assert refused.status == 2
    assert refused.err.startswith("error PTQ-FILE-002: 'ptq.toml' is there already\nhint: ")
    assert path.read_text(encoding="utf-8") == "[amax]\nmethod = 'max'\n"
    assert ptq("recipe init detector.onnx --force").status == 0
    assert "detector.onnx" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[amax]\nmetod = 'max'\n",
            "PTQ-RECIPE-002: ptq.toml: unknown key 'amax.metod' (did you mean 'method'?)",
        ),
        ("[quantization]\ntarget = 'ort'\n", "did you mean 'ort-cpu'?"),
        ("[amax\n", "ptq.toml is not valid TOML"),
        ("", None),
        (None, "PTQ-FILE-001: there is no recipe 'ptq.toml'"),
    ],
)
def test_what_is_wrong_in_a_recipe_is_said(folder, ptq, text, says):
    if text is not None:
        (folder / "ptq.toml").write_text(text, encoding="utf-8")
    outcome = ptq("recipe check")
    if says is None:
        assert outcome.out == "ptq.toml is correct: 0 settings\n"
        return
    assert outcome.status == 2
    assert says in outcome.err


def test_the_schema_takes_every_shipped_recipe_and_no_wrong_one(folder: Path, ptq: Ptq) -> None:
    assert ptq("recipe schema -o schema.json").status == 0
    schema = json.loads((folder / "schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    shipped = [
        *CONFIGS.glob("presets/*.toml"),
        *CONFIGS.glob("recipes/*.toml"),
        *ROOT.glob("sample_models/*/ptq.toml"),
    ]
    assert len(shipped) > 6
    for path in shipped:
        validator.validate(tomllib.loads(path.read_text(encoding="utf-8")))
    for wrong in (
        "[amax]\nmetod = 'max'",
        "[amax]\nmethod = 'mas'",
        "[calibration]\nsamples = 'all'",
        "[calibration]\nsamples = 0",
        "[amax]\npercentile = 0.0",
        "[[override]]\nweights = { bit = 4 }",
    ):
        assert list(validator.iter_errors(tomllib.loads(wrong))), wrong


def test_each_name_that_the_schema_allows_is_one_that_a_recipe_takes() -> None:
    schema = json.loads(recipe_schema())
    for key, declared in SETTINGS.items():
        if not names_of(key) or declared.is_open:
            continue
        section, _, name = key.partition(".")
        where = schema["properties"][section]
        entry = where.get("items", where)["properties"][name]
        assert "enum" in entry.get("items", entry), key
