"""The public names of the quantizers: all there, imported when they are used."""

import inspect
import subprocess
import sys

import pytest

import ptq_cli.quantizers as library


def test_every_name_is_what_its_file_defines():
    assert dir(library) == sorted(set(library.__all__))
    for name in library.__all__:
        value = getattr(library, name)
        assert not inspect.ismodule(value), name
        assert name.isupper() or inspect.getdoc(value), name


def test_an_unknown_name_is_refused():
    with pytest.raises(
        AttributeError, match=r"module 'ptq_cli\.quantizers' has no attribute 'fake_quantise'"
    ):
        _ = library.fake_quantise


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_library_imports_no_torch():
    run("import sys, ptq_cli.quantizers; assert 'torch' not in sys.modules")


@pytest.mark.parametrize(
    "before",
    ["", "import ptq_cli.quantizers.fixed_point;", "import ptq_cli.quantizers.fixed_point.export;"],
    ids=["at once", "its folder before", "a file of the folder before"],
)
def test_the_name_of_a_folder_is_the_function_whatever_was_imported_before(before):
    run(
        f"{before}from ptq_cli.quantizers import fixed_point as function;"
        "import ptq_cli.quantizers, ptq_cli.quantizers.fixed_point;"
        "assert callable(function) and ptq_cli.quantizers.fixed_point is function;"
        "from ptq_cli.quantizers.fixed_point.quantize import fixed_point as again; assert again is function;"
        "from ptq_cli.quantizers import step; assert step.step_quantize"
    )
