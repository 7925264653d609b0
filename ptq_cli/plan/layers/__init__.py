"""Layers and the tensors that they need quantized, or that share parameters with those.

What may enter: a step of ``planner`` from an operator to the tensors around it.
"""
