"""The best integers for a layer whose moments are known.

``second_moments`` sums what a layer reads and should make, in exact integers; ``least_squares`` finds the
best real weights for these sums, and ``code_search`` the best integers and scales. What may enter: arithmetic
on arrays, whose bits do not depend on the number of threads; it knows neither models nor samples.
"""
