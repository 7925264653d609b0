"""Statistics become amax, scale and zero point: pure functions. No torch."""
