"""Whether quantizing a layer saves bytes or time: estimates from the graph, without running anything.

May enter: the estimate of what a plan saves, and the choice of layers that save nothing. Placing pairs may
not.
"""
