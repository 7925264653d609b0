"""What a quantized file holds: its pairs, its constants, and the float graph that it stands for.

What may enter: what any file with Q/DQ says, whoever made it; no verdict on it.
"""
