"""Which tensor is quantized, to what, and why not.

``target`` reads a target's table of rules, ``planner`` applies it to a graph, ``sites`` holds what comes
out: sites and refusals. ``layers`` has the steps of the planner, ``questions`` what it asks of single
nodes, ``formats`` what narrower numbers change. Nothing here changes a graph or runs it.
"""
