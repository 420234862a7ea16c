import torch

from tests.diagnosis.conftest import build

__all__ = ["build"]  # a fixture, which a test asks for by name

# One thread for tensors this small: more only get in each other's way.
torch.set_num_threads(1)
