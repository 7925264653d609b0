"""A float graph, a plan and parameters become the quantized graph.

``quantize_graph`` runs the passes in order. ``site_parameters`` decides the scale and zero point of every
site before; ``weight_quantizer`` says what each family of quantizers must tell. What may enter: a pass, or
what one stores.
"""
