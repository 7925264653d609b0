"""The sections of a recipe: each is a frozen dataclass, each key a field with a line that describes it.

What may enter: settings with their types and defaults. Not which values are valid, which ``check`` knows, nor
how one is read from a file, which ``decode`` does.
"""
