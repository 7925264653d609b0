"""The model's file becomes the float ONNX model that every stage works on.

What may enter: how the float model is made and proven equal; ``prepare`` writes it alone.
"""
