"""What a pack on disk holds, read from safetensors headers alone. No torch."""
