"""How anything is printed: lines, tables that fit the width, bars of progress, warnings.

What may enter: what knows the terminal and no result.
"""
