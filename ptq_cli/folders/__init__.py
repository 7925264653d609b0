"""Folders of ONNX files that belong together, such as the encoder and the decoder of one export.

``model_folder`` finds the files, ``file_requests`` says what is asked of each, ``folder_layout`` where they
lie. What may enter: what holds for several models at once; one model is for the rooms below.
"""
