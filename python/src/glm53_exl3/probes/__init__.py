"""Facts about host and runtime, and the checks made of them."""
