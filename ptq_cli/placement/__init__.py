"""Which numbers each tensor of a plan becomes: what the recipe asks, the target allows and the ranges give.

``tensor_settings`` says what a tensor is asked to be, ``target_limits`` what the target makes of that,
``ranges`` what the statistics give it, ``weight_families`` how a weight becomes integers; ``placed_graph``
puts them together. What may enter: what decides numbers from a plan and statistics. Nothing here writes a
graph or runs one.
"""
