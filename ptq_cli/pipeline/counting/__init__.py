"""Batches are run, and what they hold is counted, several at once.

What may enter: how collectors are fed. Not which model runs, nor what is kept of it.
"""
