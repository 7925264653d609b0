"""Passes that put QuantizeLinear and DequantizeLinear around values, and make their readers read behind.

What may enter: a pass that inserts pairs or stores integers behind them.
"""
