"""The samples that a rung learns from and is judged by, and their tensors on the way through a model.

What may enter: which samples, how their tensors are kept, and how far outputs are apart.
"""
