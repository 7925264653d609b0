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
    with pytest.raises(AttributeError, match=r"^No ptq_cli\.quantizers attribute fake_quantise$"):
        _ = library.fake_quantise


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_library_imports_no_torch():
    run("import sys, ptq_cli.quantizers; assert 'torch' not in sys.modules")
