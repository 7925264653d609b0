"""The report as a value and as JSON, with the checks that hold its parts together.

What may enter: frozen values that a file holds, and how they are read back; nothing but the standard library.
"""
