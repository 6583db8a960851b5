"""Packs and drafts from the Hugging Face Hub."""
