"""What the terminal shows of results: lines and tables; ``--json`` prints the results as they are.

What may enter: how a value reads; no command. ``terminal`` prints it.
"""
