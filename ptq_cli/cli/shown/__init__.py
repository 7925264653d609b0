"""What the terminal shows of results: lines and tables for a person; ``--json`` prints the results themselves.

What may enter: how a value reads; no command. ``terminal`` prints it, ``drawings`` draws with characters.
"""
