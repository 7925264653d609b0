"""The methods: from statistics to amax, each in a file of its own.

What may enter: a pure function of statistics or of the histogram, and its loops.
"""
