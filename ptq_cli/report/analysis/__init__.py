"""What quantization costs, tensor by tensor and layer by layer, with the likely cause and what to try.

``document`` is the format of ``analysis.json``. Only numpy may be imported here: whoever reads an analysis,
such as a page that draws it, needs neither ONNX nor ONNX Runtime.
"""
