"""Which quantizer each tensor of a plan gets, and which layers stay in float after all.

What may enter: what a recipe, a target and the ranges make of a plan.
"""
