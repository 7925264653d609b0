"""Values, nodes and names of any graph.

What may enter: what whoever prepares, plans or edits a graph asks of it.
"""
