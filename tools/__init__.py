"""Commands that write the generated parts of the documentation: run ``python -m tools.<name>``."""
