"""Convert DSpark draft models between the formats they are published in, and verify them."""

__version__ = "0.1.0"
