import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """These tests make thousands of small operations: on busy machines a second thread costs more than it brings."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
