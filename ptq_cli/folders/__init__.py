"""Folders of ONNX files that belong together, such as the encoder and the decoder of one export.

``model_folder`` finds the files and says where the quantized ones lie, ``file_requests`` what is asked of
each. What may enter: what holds for several models at once; one model is for the rooms below.
"""
