"""Model files of any kind are told apart, checked and opened.

``pytorch`` exports what PyTorch saved. What may enter: what a file's format needs, and what a hostile file
could do.
"""
