"""What every verb begins with: the request resolved, the run directory, the outputs checked, the float model.

What may enter: what more than one verb needs before its own work, and ``resumable``, which continues it.
"""
