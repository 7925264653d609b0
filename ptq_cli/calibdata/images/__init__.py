"""Folders of images, and encoded images from anywhere.

What may enter: listing, decoding and normalising of images.
"""
