"""Encoded images as arrays, and arrays as small pictures.

What may enter: the image settings, what decodes and prepares one image, and the folder that holds many.
"""
