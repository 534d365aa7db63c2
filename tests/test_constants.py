import copy
import pickle

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import stringpe
from stringpe.attention import Attention
from stringpe.constants import Constant
from stringpe.geometry import box3d


def counted():
    calls = []

    def make(dtype, device):
        calls.append((dtype, device))
        return torch.arange(3, dtype=dtype, device=device)

    return Constant(make), calls


CPU = torch.device("cpu")


def test_formed_once_for_each_dtype_and_device():
    constant, calls = counted()
    assert constant(torch.float32, CPU) is constant(torch.float32, CPU)
    assert constant(torch.float64, CPU).dtype == torch.float64
    assert constant(torch.float32, torch.device("meta")).is_meta
    assert len(calls) == 3


def test_what_is_made_in_inference_mode_or_while_tracing_is_not_kept():
    constant, calls = counted()
    with torch.inference_mode():
        assert constant(torch.float32, CPU).is_inference()
    with FakeTensorMode():
        assert type(constant(torch.float32, CPU)) is not torch.Tensor
    kept = constant(torch.float32, CPU)
    assert type(kept) is torch.Tensor
    assert not kept.is_inference()
    assert len(calls) == 3


def test_circulant_trains_after_inference_and_keeps_its_precision():
    encoding = stringpe.create("circulant", head_dim=16, num_heads=2, coord_dim=2)
    layer = Attention(32, 2, encoding=encoding)
    x, coords = torch.randn(1, 5, 32), torch.rand(5, 2)
    with torch.inference_mode():
        layer(x, coords)
    layer(x, coords).sum().backward()
    assert encoding.frequencies.weight.grad.abs().max() > 0
    single = encoding.basis()
    double = encoding.double().basis()  # formed anew, not cast
    torch.testing.assert_close(
        double @ double.mT, torch.eye(16, dtype=torch.float64).expand(2, -1, -1), rtol=0, atol=1e-14
    )
    torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-6)


def test_copies_and_pickles_are_whole():
    encoding = stringpe.create("circulant", head_dim=16, num_heads=2, coord_dim=2)
    before = encoding.frequencies()
    assert not any("sines" in name or "matrix" in name for name in encoding.state_dict())
    for other in (copy.deepcopy(encoding), pickle.loads(pickle.dumps(encoding))):
        torch.testing.assert_close(other.frequencies(), before)
        assert other.frequencies._sines._form.__self__ is other.frequencies


def test_boxes_train_after_inference_on_the_same_dtype():
    box = torch.randn(2, 12, dtype=torch.float16).abs()
    with torch.inference_mode():
        box3d.corners(box)
    leaf = box.clone().requires_grad_()
    box3d.corners(leaf).sum().backward()
    assert leaf.grad is not None
