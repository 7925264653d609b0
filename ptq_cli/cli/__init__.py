"""The terminal: one command a file; the only place that knows click, rich and tqdm."""
