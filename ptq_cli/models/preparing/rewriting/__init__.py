"""What the passes are made of: patterns, formulas, edits, and what a pass is.

What may enter: what several passes share.
"""
