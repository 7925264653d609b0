"""Folders of ONNX files that belong together, such as the encoder and the decoder of one export.

``model_folder`` finds the files and says what is asked of each, and ``run_quantize_folder`` makes all of
them. What may enter: what holds for several models at once; one model is for the rooms below.
"""
