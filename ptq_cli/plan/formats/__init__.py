"""What the number formats that a recipe asks for change about a plan.

What may enter: which sites a format adds or removes, and which layers have no kernel for it.
"""
