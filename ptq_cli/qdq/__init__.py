"""A model, a plan and parameters become the quantized model.

``parameters`` decides the scale and zero point of every site. Then each file is a pass or a proof:
``constants`` stores weights and biases as integers behind a DequantizeLinear, ``activations`` inserts the
pairs, ``structure`` proves that the result is well formed, ``fusion`` counts what ONNX Runtime made integer.
``quantize`` runs them in order.

Of a quantized file, whoever made it (``quantized_file``), ``grids`` reads the pairs, ``kernels`` finds each
operator in what ONNX Runtime makes of the graph, ``explain`` says by a target's rules why one is float,
``operators`` joins the two, and ``target_faults`` holds the graph to the target's table.
"""
