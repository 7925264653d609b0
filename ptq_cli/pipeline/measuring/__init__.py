"""Models and data are opened, found to belong together, and run: what an evaluation measures.

What may enter: what runs a model on evaluation data, or decides how. Not what is written of it
(``evaluation``).
"""
