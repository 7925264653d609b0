"""Two reports side by side: what changed, and how much worse the later one is.

What may enter: what reads two reports of one model; nothing but the standard library.
"""
