"""Quantizers in PyTorch, with straight-through gradients."""
