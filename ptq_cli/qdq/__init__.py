"""A model, a plan and parameters become the quantized model; a quantized model is read and proven.

``write`` holds the passes that make it, with the decisions that they store. ``read`` says what a quantized
file holds, whoever made it; ``proof`` what is certain of it: its structure, its target's rules, its kernels.
``staged_model`` runs a float graph and its quantized twin piece by piece.
"""
