"""The terminal: one command a file; the only place that knows click, rich and tqdm.

``main`` maps errors to exit statuses, ``options`` defines each shared option once, ``values`` reads their
values, ``progress``, ``output`` and ``summaries`` show things. A command builds a request and makes one
pipeline call.
"""
