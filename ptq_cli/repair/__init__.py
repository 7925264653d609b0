"""Repair: int8 weights of any tool's file made safe for sums of 16 bits; nothing else in it changes.

What may enter: what finds such weights in a file, decides new ones, and writes them into the same message.
"""
