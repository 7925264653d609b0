"""A float graph, a plan and parameters become the quantized graph.

``site_parameters`` decides scale, zero point and integers of every site; recovery may decide them again. Then
``quantize_graph`` runs the passes in order. What may enter: a pass, or what one stores.
"""
