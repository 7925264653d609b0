"""A model, a plan and parameters become the quantized model: graph passes and their verification. No torch."""
