"""A .pt2 archive that could run code when it is loaded is refused before it is."""

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ptq_cli.core.errors import ModelFormatError, PickleError
from ptq_cli.models.loading.archive_safety import require_safe_archive
from ptq_cli.models.loading.open_model import open_model
from ptq_cli.models.quiet_export import quiet_exporter
from ptq_cli.recipe.sections import ModelSettings
from tests.each_case import each_case
from tests.unit.models.loading.sources import SmallNet

Edit = Callable[[dict[str, bytes]], None]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "model.pt2"
    torch.manual_seed(0)
    module = SmallNet().eval()
    batch = torch.export.Dim("batch")
    with quiet_exporter():
        program = torch.export.export(module, (torch.zeros(2, 3, 8, 8),), dynamic_shapes=({0: batch},))
        torch.export.save(program, path)
    return path


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch '{self.path}'",)


def edited(archive: Path, target: Path, edit: Edit) -> Path:
    """Copy an archive; ``edit`` changes its members, named below the archive's own folder."""
    with zipfile.ZipFile(archive) as source:
        folder = source.namelist()[0].partition("/")[0]
        members = {name.partition("/")[2]: source.read(name) for name in source.namelist()}
    edit(members)
    with zipfile.ZipFile(target, "w") as copy:
        for name, content in members.items():
            copy.writestr(f"{folder}/{name}", content)
    return target


def weights_by_pickle(touched: Path) -> Edit:
    def edit(members: dict[str, bytes]) -> None:
        name = next(name for name in members if name.startswith("data/weights/") and name.endswith(".json"))
        config = json.loads(members[name])
        entry = next(iter(config["config"].values()))
        entry["use_pickle"] = True
        members[f"data/weights/{entry['path_name']}"] = pickle.dumps(Malicious(touched))
        members[name] = json.dumps(config).encode()

    return edit


def constant_object(touched: Path) -> Edit:
    def edit(members: dict[str, bytes]) -> None:
        name = "data/constants/model_constants_config.json"
        entry = {"path_name": "custom_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
        members[name] = json.dumps({"config": {"thing": entry}}).encode()
        members["data/constants/custom_obj_0"] = pickle.dumps(Malicious(touched))

    return edit


def old_weights(touched: Path) -> Edit:
    return lambda members: members.update({"data/weights/model.pt": pickle.dumps(Malicious(touched))})


def sample_inputs(touched: Path) -> Edit:
    return lambda members: members.update({"data/sample_inputs/model.pt": pickle.dumps(Malicious(touched))})


def compiled_code(touched: Path) -> Edit:
    return lambda members: members.update({"data/aotinductor/model/model.so": b"\x7fELF"})


def expression(text: str) -> Callable[[Path], Edit]:
    def make(touched: Path) -> Edit:
        def replace(value: object) -> None:
            if isinstance(value, dict):
                for key in value:
                    if key == "expr_str":
                        value[key] = text.format(touched=touched)
                    replace(value[key])
            elif isinstance(value, list):
                for item in value:
                    replace(item)

        def edit(members: dict[str, bytes]) -> None:
            name = next(name for name in members if name.startswith("models/") and name.endswith(".json"))
            program = json.loads(members[name])
            replace(program)
            assert text.format(touched=touched) in json.dumps(program)
            members[name] = json.dumps(program).encode()

        return edit

    return make


HOSTILE = {
    "weights_by_pickle": (weights_by_pickle, "holds a pickled object"),
    "constant_object": (constant_object, "holds a pickled object (thing)"),
    "old_weights": (old_weights, "holds a pickled object (data/weights/model.pt)"),
    "sample_inputs": (sample_inputs, "holds a pickled object (data/sample_inputs/model.pt)"),
    "compiled_code": (compiled_code, "holds compiled code"),
    "import": (
        expression("__import__('os').system('touch {touched}')"),
        "has a shape expression that is not arithmetic",
    ),
    "lambda": (expression("(lambda: 1)()"), "has a shape expression that is not arithmetic"),
    "attribute": (expression("s0.func"), "has a shape expression that is not arithmetic"),
    "call": (expression("eval(s0)"), "has a shape expression that is not arithmetic"),
}


@each_case("case", HOSTILE)
def test_a_hostile_archive_is_refused_and_runs_nothing(tmp_path, archive, case):
    make, reason = HOSTILE[case]
    touched = tmp_path / "touched"
    path = edited(archive, tmp_path / "hostile.pt2", make(touched))
    with pytest.raises(PickleError) as caught:
        open_model(path, ModelSettings())
    assert caught.value.message.startswith(f"'hostile.pt2' {reason}")
    assert caught.value.message.endswith("and loading it can run any code")
    assert caught.value.code == "PTQ-MODEL-002"
    assert "--set model.trust_pickle=true" in caught.value.hint
    assert not touched.exists()


@each_case("case", ["weights_by_pickle", "old_weights", "sample_inputs", "compiled_code"])
def test_the_case_of_letters_hides_nothing(tmp_path, archive, case):
    def edit(members: dict[str, bytes]) -> None:
        before = dict(members)
        HOSTILE[case][0](tmp_path / "touched")(members)
        for name in [name for name in members if members[name] != before.get(name)]:
            members.pop(name.upper(), None)
            members[name.upper()] = members.pop(name)

    path = edited(archive, tmp_path / "hostile.pt2", edit)
    with pytest.raises((PickleError, ModelFormatError), match=r"PTQ-MODEL-00[12]"):
        require_safe_archive(path)


@pytest.mark.parametrize("rename", [str, str.upper], ids=["same_name", "other_case"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_second_member_of_one_name_is_refused(tmp_path, archive, rename):
    # PyTorch looks a member up without regard to case: a plain pickle would be checked, another one loaded.
    path = edited(archive, tmp_path / "hostile.pt2", lambda members: None)
    with zipfile.ZipFile(path, "a") as target:
        target.writestr(rename(target.namelist()[-1]), pickle.dumps(Malicious(tmp_path / "touched")))
    with pytest.raises(PickleError, match="holds two members with the same name"):
        open_model(path, ModelSettings())
    assert not (tmp_path / "touched").exists()


def test_an_archive_of_the_old_form_is_refused(tmp_path):
    path = tmp_path / "old.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("serialized_exported_program.json", "{}")
    with pytest.raises(
        PickleError, match=r"has a form from before PyTorch 2\.8, which is loaded by unpickling"
    ):
        open_model(path, ModelSettings())


def test_arithmetic_in_shapes_is_allowed(tmp_path, archive):
    path = edited(archive, tmp_path / "m.pt2", expression("Max(2*s0 + 1, Mod(s0, 4))//3")(tmp_path))
    require_safe_archive(path)


def broken_json(members: dict[str, bytes]) -> None:
    name = next(name for name in members if name.startswith("models/") and name.endswith(".json"))
    members[name] = members[name][:-20]


def no_config(members: dict[str, bytes]) -> None:
    name = next(name for name in members if name.startswith("data/weights/") and name.endswith(".json"))
    members[name] = b"[]"


def missing_payload(members: dict[str, bytes]) -> None:
    name = next(name for name in members if name.startswith("data/weights/") and name.endswith(".json"))
    config = json.loads(members[name])
    next(iter(config["config"].values())).update(use_pickle=True, path_name="nowhere")
    members[name] = json.dumps(config).encode()


@pytest.mark.parametrize("edit", [broken_json, no_config, missing_payload])
def test_a_damaged_archive_is_named(tmp_path, archive, edit):
    path = edited(archive, tmp_path / "m.pt2", edit)
    with pytest.raises(ModelFormatError, match=r"'m\.pt2' is damaged") as caught:
        open_model(path, ModelSettings())
    assert caught.value.hint == "export it again"


def test_an_archive_that_torch_cannot_read_is_named(tmp_path, archive):
    def edit(members: dict[str, bytes]) -> None:
        name = next(name for name in members if name.startswith("models/") and name.endswith(".json"))
        members[name] = b"{}"

    path = edited(archive, tmp_path / "m.pt2", edit)
    with pytest.raises(
        ModelFormatError, match=r"'m\.pt2' cannot be loaded as a torch\.export archive"
    ) as caught:
        open_model(path, ModelSettings())
    assert torch.__version__ in caught.value.hint
