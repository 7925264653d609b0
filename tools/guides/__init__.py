"""The guides in ``docs/guides``: their blocks of code, the folders that these run in, and their sessions."""
