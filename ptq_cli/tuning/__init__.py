"""``ptq tune``: candidates are made one after the other, until one provably keeps the budget.

``candidate`` decides which one comes next and when one has shown enough; it knows neither models nor data.
``candidate_models`` makes and measures candidates; ``layer_noise`` measures layers, ``layer_ranking`` ranks
those to leave in float, and ``tuning_checkpoint`` keeps what was measured. What may enter: what chooses among
models that other rooms make.
"""
