"""Model files of any kind are told apart, checked and opened.

``source`` tells what a file is, and each other file opens one kind: what PyTorch saved is exported. What may
enter: what a file's format needs, and what a hostile file could do.
"""
