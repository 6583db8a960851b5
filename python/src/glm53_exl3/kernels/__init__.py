"""Layer 3: one interface to run a layer of routed EXL3 experts, one implementation a file."""
