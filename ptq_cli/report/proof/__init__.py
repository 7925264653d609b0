"""What is proven about a quantized model, as values: operators, rules, outputs, the verdict.

What belongs here: results of ``qdq.proof`` put together; no metric.
"""
