"""Batches are run, and what they hold is counted, several at once.

What may enter: how collectors are fed. Not which model runs (``open_forward``), nor what is kept of it.
"""
