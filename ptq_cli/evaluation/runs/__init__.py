"""Models run on the same batches, and every metric of what they give.

Outputs are checked, turned and fitted to labels before a metric sees them. Parts of a set join to the whole.
"""
