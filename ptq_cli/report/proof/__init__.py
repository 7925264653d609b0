"""What is known for certain of a quantized model, as values: operators, rules, outputs, the verdict.

What may enter: findings of ``qdq.proof`` put together; no metric.
"""
