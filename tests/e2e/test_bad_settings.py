"""Recipes and flags that cannot be used."""

from pathlib import Path
from typing import Any

from tests.each_case import each_case, table

MODEL = " model.onnx --data calib.npz"
WORDS = {
    "calibrate": "calibrate" + MODEL,
    "export": "export",
    "evaluate": "evaluate",
    "quantize": "quantize" + MODEL,
    "inspect": "inspect model.onnx",
}


# The content of ptq.toml, the code, what the error says, and its hint; tests/unit/recipe has all of them.
TOML = table("""
    [calibration | PTQ-RECIPE-001 | ptq.toml is not valid TOML | toml.io
    calibration.mehtod = 'max' | PTQ-RECIPE-002 \
        | ptq.toml: unknown key 'calibration.mehtod' (did you mean 'method'?) \
        | [calibration] has: data, method
    data.batch_size = 0 | PTQ-RECIPE-003 | is 0, it must be at least 1 | batch_size
    gate.max_drop.top1 = -0.1 | PTQ-GATE-001 | is negative | without a sign
""")


@each_case("toml, code, says, hint", TOML)
def test_a_bad_recipe_is_refused(folder, refuse, toml, code, says, hint):
    (folder / "ptq.toml").write_text(toml)
    refuse(WORDS["calibrate"], code, says, hint=hint)


def test_every_command_refuses_a_bad_recipe(folder, refuse):
    toml, code, says, hint = TOML[-1]
    (folder / "ptq.toml").write_text(toml)
    for words in WORDS.values():
        refuse(words, code, says, hint=hint)


def test_a_broken_link_in_place_of_ptq_toml(folder: Path, refuse: Any) -> None:
    (folder / "ptq.toml").symlink_to("nowhere.toml")
    for command in WORDS.values():
        refuse(command, "PTQ-FILE-001", "recipe 'ptq.toml' does not exist")


FLAGS = table("""
    calibrate model.onnx --method mx | PTQ-RECIPE-004 | (did you mean 'max'?) | known
    calibrate m --samples many | PTQ-USAGE-001 | 'many' is not a valid integer | --help
    gate ptq-run/report.json --baseline nowhere.json --max-regression sqnr_db=1 | PTQ-FILE-001 \
        | report 'nowhere.json' does not exist | check the path
    evaluate --baseline model.onnx --max-regression sqnr_db=1 | PTQ-REPORT-001 \
        | baseline report 'model.onnx': it is not valid JSON | ptq evaluate
    evaluate --baseline ptq-run/report.json --max-regression sqnr_db=1 | PTQ-USAGE-001 \
        | would overwrite the baseline | --run
    export --samples 3 | PTQ-USAGE-001 | no option '--samples' | --set calibration.samples=3
    calibrate a b | PTQ-USAGE-001 | unexpected extra argument (b) | --help
    gate | PTQ-USAGE-001 | missing argument 'REPORT' | --help
    calibrate --data | PTQ-USAGE-001 | '--data' requires an argument | --help
""")


@each_case("words, code, says, hint", FLAGS)
def test_a_bad_flag_is_refused(refuse: Any, words: str, code: str, says: str, hint: str) -> None:
    refuse(words, code, says, hint=hint)
