"""The counting loops: numba on the host, PyTorch on a device.

What may enter: a loop over values, and the layout of its table.
"""
