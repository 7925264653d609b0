"""Targets, metrics and amax methods of other packages: used end to end, and refused where they are broken."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from ptq_cli.core.entry_points import AMAX_METHODS, METRICS, TARGETS
from tests.e2e.conftest import Ptq, Refuse

SAMPLE = Path(__file__).parent / "sample_plugin"
PACKAGE = "ptq-sample-plugin"
Declare = Callable[..., None]
NAMES = "target sample-npu, metric brier, amax method most"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample package, installed in a folder of its own."""
    folder = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(SAMPLE, folder / "source")
    code = f"import setuptools.build_meta as backend; backend.build_wheel({str(folder)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    # A wheel of Python alone is installed by unpacking it.
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


@pytest.fixture
def installed_plugin(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(installed)


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Declare:
    """Put a package on the path that has one entry point, which may name nothing."""
    monkeypatch.syspath_prepend(tmp_path / "site")

    def call(group: str, name: str, value: str, package: str = "odd-pack", code: str = "") -> None:
        info = tmp_path / "site" / f"{package.replace('-', '_')}-2.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
        (tmp_path / "site" / "odd_pack.py").write_text(code)
        monkeypatch.delitem(sys.modules, "odd_pack", raising=False)

    return call


@pytest.mark.usefixtures("installed_plugin")
def test_plugins_are_used_end_to_end(folder: Path, ptq: Ptq) -> None:
    words = "quantize model.onnx --data calib.npz --eval-data eval.npz --method histogram"
    words += (
        " --target sample-npu --amax most --set amax.weight_method=most --metric brier --max-drop brier=9"
    )
    outcome = ptq(words)
    assert outcome.status == 0, outcome.err
    report = json.loads((folder / "ptq-run/report.json").read_text())
    (brier,) = (metric for metric in report["metrics"] if metric["name"] == "brier")
    assert (brier["computed_by"], brier["higher_is_better"]) == ("ptq_sample_plugin.metrics:brier", False)
    assert (report["target"], report["versions"][PACKAGE]) == ("sample-npu", "0.3")
    assert report["amax"]["method"] == "most, weights by most"
    # The target's table has one scale per weight.
    model = onnx.load(folder / "ptq-run/model_int8.onnx")
    scales = [item for item in model.graph.initializer if "weight" in item.name and "scale" in item.name]
    assert scales and all(numpy_helper.to_array(item).ndim == 0 for item in scales)
    # A later command finds the target by what the file says.
    verified = json.loads(ptq("verify --json").out)
    assert (verified["target"], verified["verdict"]) == ("sample-npu", "pass")


@pytest.mark.usefixtures("installed_plugin")
def test_plugins_are_listed(folder: Path, ptq: Ptq, refuse: Refuse) -> None:
    assert ptq("--version").out.splitlines()[1:] == [f"plug-ins of {PACKAGE} 0.3: {NAMES}"]
    refuse("evaluate --metric breir", "PTQ-RECIPE-004", "did you mean 'brier'?", hint="brier")
    refuse("export --amax mots", "PTQ-RECIPE-004", "did you mean 'most'?", hint="mse, most")
    refuse("inspect model.onnx --target sample-cpu", "PTQ-RECIPE-004", hint="sample-npu")


@pytest.mark.usefixtures("installed_plugin")
def test_a_plugin_method_has_its_column(folder: Path, ptq: Ptq) -> None:
    assert ptq("calibrate model.onnx --data calib.npz --method histogram").status == 0
    shown = ptq("inspect --amax most")
    assert shown.status == 0 and "most" in shown.out
    assert "most *" in ptq("inspect --tensor relu --amax most").out


def test_the_page_shows_the_sample_package() -> None:
    page = (SAMPLE.parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", page, re.DOTALL)
    assert [name for name, _ in blocks if "toml" in name] and len(blocks) == 4
    for name, text in blocks:
        assert text in (SAMPLE / name).read_text(encoding="utf-8")


BROKEN = {
    "no module": (
        TARGETS,
        "npu",
        "nowhere:NPU",
        "",
        "cannot be loaded from nowhere:NPU: ModuleNotFoundError",
    ),
    "no object": (METRICS, "odd", "odd_pack:odd", "", "cannot be loaded from odd_pack:odd: AttributeError"),
    "exits": (AMAX_METHODS, "odd", "odd_pack:odd", "raise SystemExit(3)", "SystemExit: 3"),
    "no path": (TARGETS, "npu", "odd_pack:odd", "odd = 3", "is a int, expected the path of a TOML file"),
    "no function": (METRICS, "odd", "odd_pack:odd", "odd = 3", "is a int, expected a function or a class"),
    "raises": (
        AMAX_METHODS,
        "odd",
        "odd_pack:odd",
        "def odd(h, levels): raise ValueError('no')",
        "raised ValueError: no",
    ),
    "negative": (
        AMAX_METHODS,
        "odd",
        "odd_pack:odd",
        "def odd(h, levels): return -1",
        "returned -1, expected",
    ),
    "own name": (TARGETS, "ort-cpu", "odd_pack:odd", "", "has a name that ptq itself uses for the target"),
    "own metric": (METRICS, "top1", "odd_pack:odd", "", "has a name that ptq itself uses for the metric"),
}
COMMANDS = {
    TARGETS: "inspect model.onnx --target {}",
    METRICS: "evaluate --metric {}",
    AMAX_METHODS: "export --amax {}",
}


@pytest.mark.parametrize(("group", "name", "value", "code", "said"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_plugin_is_refused(refuse, declare, group, name, value, code, said):
    declare(group, name, value, code=code)
    words = COMMANDS[group].format(name)
    refuse(
        words, "PTQ-PLUGIN-001", f"'{name}' of the package odd-pack 2.0", said, hint="pip uninstall odd-pack"
    )


def test_a_table_that_is_not_valid_names_its_package(folder: Path, refuse: Refuse, declare: Declare) -> None:
    (folder / "npu.toml").write_text('name = "npu"\nextends = "ort-cpu"\nopzet = 13\n')
    declare(TARGETS, "npu", "odd_pack:odd", code=f"odd = {str(folder / 'npu.toml')!r}")
    said = ("the table of the package odd-pack 2.0", "'opzet'")
    refuse("inspect model.onnx --target npu", "PTQ-RECIPE-002", *said)


def test_two_packages_with_one_name_are_refused(refuse: Refuse, declare: Declare) -> None:
    declare(METRICS, "odd", "odd_pack:odd")
    declare(METRICS, "odd", "odd_pack:odd", package="other-pack")
    said = ("odd-pack 2.0 has the same name as the one of the package other-pack 2.0",)
    refuse("evaluate --metric odd", "PTQ-PLUGIN-001", *said, hint="pip uninstall other-pack")
