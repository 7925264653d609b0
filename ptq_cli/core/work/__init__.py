"""Long work of this process: its progress, its memory, its threads, and when its next checkpoint is due.

What may enter: what knows nothing of models and data. Not how progress is shown (``cli``).
"""
