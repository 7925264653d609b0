"""What the terminal shows of results: lines and tables for a person, values for ``--json``.

What may enter: how a value reads, for a person and as JSON; no command. ``terminal`` prints it, ``drawings``
draws with characters, ``documents`` has the types of the JSON.
"""
