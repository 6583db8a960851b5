"""Memory plan: what a pack, a context and a host add up to, and the vLLM flags that follow. Pure."""
