"""Time one layer of routed experts by each backend, beside what the hardware allows; needs torch, not vLLM."""
