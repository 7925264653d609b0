"""The accuracy that rounding cost is recovered: weights of a quantized model are chosen again, from data.

``second_moments`` sums what a layer reads and should make, in exact integers; ``least_squares`` finds the
best real weights for these sums, and ``code_search`` the best integers and scales. ``recover_rounding`` walks
through both models layer by layer. What may enter: what changes a quantized model without gradients, and
measures how much that helped.
"""
