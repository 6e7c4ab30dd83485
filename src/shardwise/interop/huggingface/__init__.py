"""Hugging Face: models from config.json."""
