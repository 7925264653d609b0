"""Plan: the tensors to quantize, their formats, and the reasons of all others.

``target`` reads a target's table of rules, ``planner`` applies it to a graph, ``sites`` holds what comes out:
sites and refusals. ``weighted_operators`` and ``requests`` are the steps of the planner; ``refusals`` and
``graph_questions`` answer its questions about single nodes; ``fitted_grids`` and ``cost_benefit`` change a
plan afterwards. Nothing here changes a graph or runs it.
"""
