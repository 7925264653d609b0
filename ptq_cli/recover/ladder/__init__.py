"""What is done for a model whose worst output is below the goal, the cheapest first.

``escalation`` begins with the forms of recurrent layers; ``float_layers``, ``float_weights``,
``dynamic_layers`` and ``more_bits`` follow. What may enter: a search that the default makes by itself.
"""
