"""What the terminal shows: lines, tables, drawings, bars.

What may enter: how a value reads, for a person and as JSON; no command.
"""
