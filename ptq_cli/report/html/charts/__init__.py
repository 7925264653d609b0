"""Charts as geometry: documents become positions and paths, which the template inserts.

What may enter: a chart for each file; ``axis_scale`` has what all of them share. No HTML.
"""
