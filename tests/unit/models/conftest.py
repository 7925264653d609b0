import pytest

from tests.torch_needed import HAS_TORCH


@pytest.fixture(autouse=True)
def seeded():
    if HAS_TORCH:
        import torch

        torch.manual_seed(0)
