"""Repair: int8 weights of any tool's file made safe for sums of 16 bits, and nothing else in the file changed.

What may enter: what finds such weights in a file, decides new ones, and writes them into the same message.
"""
