"""Which tensor is quantized, to what, and why not.

``target`` reads a target's table of rules, ``planner`` applies it to a graph, ``sites`` holds what comes
out: sites and refusals. ``masks`` recognizes attention masks. Nothing here changes a graph or runs it.
"""
