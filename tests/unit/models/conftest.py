import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread():
    # Two spinning OpenMP threads beside another busy process are slower than one by far.
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
