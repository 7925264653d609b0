"""Questions of the planner about single tensors and nodes: patterns, neighbors, and why not.

What may enter: a question that a graph and a target's rules answer, whatever else is planned.
"""
