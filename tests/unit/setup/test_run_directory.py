"""The run's own quantized model is named for its weights, and there is one of them."""

from pathlib import Path

from ptq_cli.recipe.sections import WeightSettings
from ptq_cli.setup.run_directory import RunDirectory
from tests.each_case import each_case


@each_case(
    "weights, name",
    [
        (WeightSettings(), "model.int8.onnx"),
        (WeightSettings(bits=2, block_size=32), "model.w2.onnx"),
        (WeightSettings(quantizer="centers"), "model.w4.onnx"),
        (WeightSettings(dtype="float8e4m3fn"), "model.fp8.onnx"),
        (WeightSettings(dtype="float4e2m1"), "model.fp4.onnx"),
    ],
)
def test_a_model_is_named_for_its_weights(weights: WeightSettings, name: str) -> None:
    assert RunDirectory(Path("run")).quantized_file(weights).name == name


def test_the_recipe_says_which_model_is_the_run_s_own(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.quantized_model.name == "model.int8.onnx"
    (tmp_path / "recipe.toml").write_text("[weights]\nbits = 4\n")
    assert run.quantized_model.name == "model.w4.onnx"
    (tmp_path / "model.int8.onnx").write_text("of an earlier version")
    assert run.quantized_model.name == "model.int8.onnx"
    (tmp_path / "model.w4.onnx").write_text("exported since")
    assert run.quantized_model.name == "model.w4.onnx"


def test_earlier_models_with_other_weights_go(tmp_path: Path) -> None:
    names = ("model.int8.onnx", "model.w4.onnx", "model.w4.onnx.data", "model.float.onnx", "model.mine.onnx")
    for name in names:
        (tmp_path / name).write_text(name)
    run = RunDirectory(tmp_path)
    run.discard_other_models(tmp_path / "elsewhere.onnx")
    assert {file.name for file in tmp_path.iterdir()} == set(names)
    run.discard_other_models(tmp_path / "model.int8.onnx")
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {"model.int8.onnx", "model.float.onnx", "model.mine.onnx"}
