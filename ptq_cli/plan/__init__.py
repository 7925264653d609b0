"""Which tensor is quantized, to what, and why not: target rule tables, sites and refusals. No torch."""
