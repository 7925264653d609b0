"""How long each operator takes in float and in integers on a machine, and which placement is fastest there.

What may enter: times of operators, and what follows from them for a placement; how whole models compare in
speed is of ``report.evaluation``.
"""
