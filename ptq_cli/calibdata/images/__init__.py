"""Folders of images, and encoded images from any source.

What may enter: listing, decoding and normalizing images.
"""
