"""What is asked of a model beside its accuracy: what runs as integers, how fast, where it loses.

What may enter: verbs that open a float or a quantized model and write no other.
"""
