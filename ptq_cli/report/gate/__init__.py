"""Limits, and whether a report holds them.

What may enter: what decides from reports alone; nothing but the standard library.
"""
