"""What quantization costs, tensor by tensor and layer by layer, with the likely cause and what to try.

``analysis_document`` and ``tensor_rows`` are the format of ``analysis.json``, ``causes`` what follows from
numbers: none of these imports ONNX or ONNX Runtime, so that a page or a table of an analysis needs neither.
``measure_layers`` runs both models and keeps sums; ``analyzed_layers`` makes the rows.
"""
