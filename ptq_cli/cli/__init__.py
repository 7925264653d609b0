"""The terminal: the only place that knows click, rich and tqdm.

``main`` finds a command and maps errors to exit statuses. ``commands`` holds the commands, ``options``
defines each option once, ``help_sections`` lays out the help, and ``shown`` makes the lines, tables and
drawings. A command builds a request and makes one pipeline call.
"""
