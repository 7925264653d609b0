"""What the commands print with ``--json``: a type for each document, from which its schema is made.

What may enter: typed dictionaries with a description of each key, and their registry; no function.
"""
