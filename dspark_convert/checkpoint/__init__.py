"""Safetensors checkpoints as names and byte ranges; nothing here knows what a draft is."""
