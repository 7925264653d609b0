"""The terminal: the only place that knows click, rich and tqdm.

``main`` finds a command and maps errors to exit statuses, ``commands`` holds the commands, ``options``
and the files named ``*_options`` define each shared option once, ``values`` reads their values,
``help_sections`` and ``help_formatter`` write the help. ``shown`` makes the lines, tables, drawings and bars.
A command builds a request and makes one pipeline call.
"""
