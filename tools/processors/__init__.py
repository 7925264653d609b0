"""Shows on emulated processors that a quantized file computes the same integer sums everywhere.

``run.py`` and ``run.mjs`` travel: beside ONNX Runtime they and a folder of cases are all that another machine
needs. The other files make the cases here, set up processors, and judge what comes back.
"""
