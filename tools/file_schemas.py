"""The schemas in ``docs``: of files, and of what commands print with ``--json``."""

from collections.abc import Callable
from functools import partial

from ptq_cli.cli.document_registry import FILES, TITLE, command_types, document_type
from ptq_cli.core.json_schema import documents_schema, file_schema


def file_schemas() -> dict[str, Callable[[], str]]:
    """Return what makes the schema of each file, by the name of the schema."""
    return {
        name.replace(".json", ".schema.json"): partial(file_schema, document_type(kind))
        for name, kind in FILES.items()
    }


def command_schemas() -> str:
    """Return ``docs/json.schema.json``."""
    return documents_schema(TITLE, command_types())
