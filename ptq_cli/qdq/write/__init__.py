"""A float graph, a plan and parameters become the quantized graph.

``site_parameters`` decides the scale and zero point of every site, with the integers of ``weight_decisions``;
then ``quantize_graph`` runs the passes in order. What may enter: a pass, or what one
stores.
"""
