"""Costs of quantization, tensor by tensor and layer by layer, with the likely cause and what to try.

``causes`` is what follows from numbers, and imports neither ONNX nor ONNX Runtime, as the document in
``evaluation``, so that a page or a table of an analysis needs neither.
``measure_layers`` runs both models and keeps ``judge``, and makes the rows with ``tensor_rows``.
"""
