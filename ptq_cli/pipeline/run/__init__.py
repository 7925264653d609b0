"""What every verb begins with: the request resolved, the run directory, and checks of outputs.

What may enter: what all verbs share and no stage owns.
"""
