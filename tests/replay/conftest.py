import torch

# One thread for tensors this small: more only get in each other's way.
torch.set_num_threads(1)
