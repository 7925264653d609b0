"""Proofs about a quantized graph: its structure, its target's rules, the kernels it runs on.

What may enter: a question about a quantized graph that has a certain answer, with the reason.
"""
