"""Model files of any kind are told apart, checked and opened.

What may enter: what a file's format needs, and what a hostile file could do.
"""
