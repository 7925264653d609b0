"""Kinds of values in a recipe that are more than their type: paths, names, limits."""

Location = str
"""A resolved path, or ``file.py:callable`` with a resolved file, or ``package.module:callable``."""


Limit = float | str
"""A number in the metric's unit, or a percentage such as ``"1%"``."""

LOCATION = {"location": True}
FILE_OR_NAME = {"location": True, "or_name": True}
"""A file, or a name that ptq knows, which is not a path."""

ENTRY_POINTS = {"entry_points": True}
"""Marks a field whose texts are names or entry points; the file of ``file.py:callable`` is resolved."""
