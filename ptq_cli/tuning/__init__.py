"""``ptq tune``: candidates are made one after the other, until one provably keeps the budget.

``candidate`` decides which one comes next and when one has shown enough, and keeps what was measured; it
knows neither models nor data. ``candidate_models`` makes and measures candidates. What may enter: what
chooses among models that other rooms make; what improves one of them is in ``recover``.
"""
