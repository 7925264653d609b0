"""Which versions of ptq, of libraries and of plug-ins took part: they stand in every report."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from ptq_cli import __version__
from ptq_cli.core.plugins import AMAX_METHODS, METRICS, TARGETS, plugins
from ptq_cli.evaluation.metrics.spec import MetricSpec
from ptq_cli.recipe.schema import Recipe

OWN = "ptq-cli"
DISTRIBUTIONS = ("numpy", "onnx", "onnx-ir", "onnxruntime", "onnxscript", "torch", "torchmetrics")
IN_PLACE_OF = {"onnxruntime": "onnxruntime-gpu"}  # what may be installed instead
FOR_MODULES = {"torch", "torchmetrics"}  # what an ONNX file does not need, and a report may lack


def library_versions() -> dict[str, str]:
    """The versions of ptq and of the libraries that decide what comes out."""
    # ptq's is that of the code that runs: a checkout on PYTHONPATH may hide one that is installed.
    return {OWN: __version__} | {name: found for name in DISTRIBUTIONS if (found := _version(name))}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        if name in FOR_MODULES:
            return None
        if name not in IN_PLACE_OF:
            raise
        return version(IN_PLACE_OF[name])


def plugin_versions(recipe: Recipe, metrics: Iterable[MetricSpec]) -> dict[str, str]:
    """The versions of the packages whose plug-ins a model was made and measured with, by name."""
    methods = {recipe.amax.method, recipe.amax.weight_method}
    methods |= {name for item in recipe.override for name in (item.amax, item.weight_amax) if name}
    used = {
        TARGETS: {recipe.quantization.target},
        AMAX_METHODS: methods,
        METRICS: {spec.metric for spec in metrics},
    }
    return {
        plugin.package: plugin.version
        for group, names in used.items()
        for plugin in plugins(group)
        if plugin.name in names
    }
