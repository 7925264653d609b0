"""At which layer an export failed."""

from collections.abc import Iterator
from types import TracebackType

import torch

from ptq_cli.core.errors import ExportError, first_line


def export_error(error: BaseException, module: torch.nn.Module | None, what: str) -> ExportError:
    """Return the error to raise when PyTorch could not export a model; the traceback tells its layer."""
    layer = failing_layer(error, module)
    where = f" at layer '{layer}'" if layer else ""
    cause = _root_cause(error)
    return ExportError(
        f"'{what}' cannot be exported to ONNX{where}: {type(cause).__name__}: {first_line(cause)}",
        hint="use operations that torch.export supports there (no control flow on tensor values, no operator "
        "without an ONNX form), or export the model to ONNX yourself and pass that file",
    )


def failing_layer(error: BaseException, module: torch.nn.Module | None) -> str:
    """Return the path of the innermost submodule in the traceback, or an empty string.

    The exporters call the module's own ``forward``, so that each frame's ``self`` is a submodule; where a
    translation fails later, the exporter's frame holds the graph node with its module stack.
    """
    names = {id(child): name for name, child in module.named_modules()} if module is not None else {}
    found = ""
    for frame_locals in _frames(error):
        name = names.get(id(frame_locals.get("self")), "")
        node = frame_locals.get("node")
        if isinstance(node, torch.fx.Node):
            stack = node.meta.get("nn_module_stack") or {}
            name = next((path for path, _ in reversed(stack.values())), name)
        found = name or found
    return found


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _frames(error: BaseException) -> Iterator[dict[str, object]]:
    for link in _chain(error):
        traceback: TracebackType | None = link.__traceback__
        while traceback is not None:
            yield traceback.tb_frame.f_locals
            traceback = traceback.tb_next


def _root_cause(error: BaseException) -> BaseException:
    *_, last = _chain(error)
    return last
