"""Start vLLM, wait until it is healthy, talk to it, stop it."""
