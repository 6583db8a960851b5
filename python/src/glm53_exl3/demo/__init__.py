"""The demo pack: a small Glm4Moe with EXL3 experts that knows about forty answers on this project."""
