"""The reference decoder, in PyTorch."""
