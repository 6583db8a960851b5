"""The exllamav3 backend: its MoE kernels, called through an extension compiled ahead of time."""
