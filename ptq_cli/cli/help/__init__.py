"""How help is laid out: headings in one order, and lines that fit the terminal.

What may enter: the layout of help for any command; no option and no text of its own.
"""
