"""``calibrate`` and what it leads to: shares of it put together, and its file looked into.

What may enter: how a model is run and counted, by one process or several, and where its statistics came from.
"""
