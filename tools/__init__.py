"""What writes the parts of the documentation that must not drift: run with ``python -m tools.<name>``."""
