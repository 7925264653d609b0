"""The settings of a recipe for each tensor and layer, and what a target allows of them.

What may enter: what can be said of a setting before any range is decided.
"""
