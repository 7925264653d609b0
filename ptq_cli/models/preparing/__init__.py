"""The exported graph is cleaned and named before anything is measured on it.

``prepare_graph`` runs it all; ``passes`` rewrite, ``rewriting`` is what they are made of.
"""
