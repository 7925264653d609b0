"""Two models and evaluation batches become metrics, a report and a verdict."""
