"""One evaluation by several processes: each measures a part, and the parts become the whole.

What may enter: what a part is, as a file or between processes, and how parts are joined.
"""
