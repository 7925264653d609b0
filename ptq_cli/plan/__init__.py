"""Which tensor is quantized, to what, and why not.

``target`` reads a target's table of rules, ``planner`` applies it to a graph, ``sites`` holds what comes out:
sites and refusals. ``dynamic_layers`` and ``requests`` are the steps of the planner,
``graph_questions`` and its neighbors what it asks of single nodes, ``formats`` what narrower numbers change.
Nothing here changes a graph or runs it.
"""
