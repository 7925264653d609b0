"""How long models take, how much longer one takes than another, and what ``ptq bench`` prints of it.

What may enter: times of whole models, run in turns. Not which layers take them, which ``latency`` measures.
"""
