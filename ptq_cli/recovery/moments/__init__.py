"""Second moments of what layers read, in files of their own.

What may enter: what adds up the products of the integers that a layer reads, for one tensor at a time, and
what saves and loads these sums. They say nothing of outputs; so they can be made in parts, in any order.
"""
