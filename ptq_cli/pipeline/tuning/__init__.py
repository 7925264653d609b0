"""``tune``: candidates are made one after the other, until one provably keeps the budget.

``climb`` decides which candidate comes next and when one has shown enough; it knows neither models nor data.
``candidate_models`` makes and measures candidates, ``layer_ranking`` says which layers to leave in float, and
``tune_checkpoint`` keeps what was measured. What may enter: what chooses among models that other rooms make.
"""
