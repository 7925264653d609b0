"""The commands, one a file: each builds a request and makes one pipeline call.

What may enter: a click command; commands do not import one another.
"""
