"""A tensor of the kind that quantisation libraries put into layers: a wrapper that knows how to be multiplied."""

import torch
import torch.nn.functional as F


class Scaled(torch.Tensor):
    """scale · data, multiplied out only inside a linear layer."""

    @staticmethod
    def __new__(cls, data, scale):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype, device=data.device)

    def __init__(self, data, scale):
        self.inner, self.scale = data, scale

    def __tensor_flatten__(self):
        return ["inner"], self.scale

    @classmethod
    def __tensor_unflatten__(cls, tensors, scale, size, stride):
        return cls(tensors["inner"], scale)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is F.linear:
            x, weight, *rest = args
            return F.linear(x, weight.scale * weight.inner, *rest, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].inner, args[0].scale)
        raise NotImplementedError(f"{function} of a quantised weight")
