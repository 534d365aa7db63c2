"""Works where people use it: torch.compile, torch.export, two processes under DDP."""

import re

import pytest
import torch
from torch import nn

import stringpe
from cases import CASES, build, perturbed
from processes import WORLD, in_two
from stringpe import testing


class Net(nn.Module):
    """Two attention layers: what a user compiles, exports and trains."""

    def __init__(self, name, **options):
        super().__init__()
        self.layers = nn.ModuleList(
            stringpe.Attention(32, 2, encoding=stringpe.create(name, head_dim=16, num_heads=2, **options))
            for _ in range(2)
        )

    def forward(self, x, coords):
        for layer in self.layers:
            x = x + layer(x, coords)
        return x


def net(name, **options):
    torch.manual_seed(0)
    return perturbed(Net(name, **options), 0.05)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_compile_takes_every_encoding_whole_with_dynamic_shapes(case):
    torch.compiler.reset()
    enc = build(case)
    backend = "aot_eager" if case in stringpe.names() else "eager"  # variants differ in what is traced, not behind it
    compiled = torch.compile(enc, fullgraph=True, dynamic=True, backend=backend)
    for b, n in [(2, 7), (3, 12), (1, 1)]:
        q, k, coords = torch.randn(b, 3, n, 16), torch.randn(b, 3, n, 16), torch.randn(b, n, 2)
        for ours, theirs in zip(enc(q, k, coords), compiled(q, k, coords), strict=True):
            torch.testing.assert_close(theirs, ours, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["rope", "cayley", "circulant"])
@pytest.mark.slow
def test_inductor_compiles_a_model_forward_and_backward(name):
    torch.compiler.reset()
    model = net(name)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for n in (9, 16):
        x, coords = torch.randn(2, n, 32), torch.randn(2, n, 2)
        gradients = []
        for m in (model, compiled):
            model.zero_grad()
            out = m(x, coords)
            out.square().mean().backward()
            gradients.append([out, *(p.grad.clone() for p in model.parameters())])
        for eager, fast in zip(*gradients, strict=True):
            torch.testing.assert_close(fast, eager, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", stringpe.names())
@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.slow
def test_export_with_dynamic_batch_and_tokens(name, folded):
    model = net(name).eval()
    model = stringpe.fold(model) if folded else model
    dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    program = torch.export.export(
        model, (torch.randn(2, 6, 32), torch.randn(2, 6, 2)), dynamic_shapes={"x": dynamic, "coords": dynamic}
    )
    x, coords = torch.randn(5, 11, 32), torch.randn(5, 11, 2)
    torch.testing.assert_close(program.module()(x, coords), model(x, coords), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", stringpe.names())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_in_half_precision_stay_within_its_tolerance(name, dtype):
    model, x, coords = net(name), torch.randn(2, 9, 32), torch.randn(2, 9, 2)
    exact = model(x, coords)
    half = model.to(dtype)(x.to(dtype), coords)
    assert half.dtype == dtype
    assert testing.relative_error(half, exact) < testing.tolerance(dtype)


@pytest.mark.parametrize("name", stringpe.names())
def test_autocast_stays_within_the_tolerance_of_bfloat16(name):
    model, x, coords = net(name), torch.randn(2, 9, 32), torch.randn(2, 9, 2)
    exact = model(x, coords)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x, coords)
    out.float().sum().backward()
    assert testing.relative_error(out, exact) < testing.tolerance(torch.bfloat16)


def _train(rank, name, x, coords):
    model = nn.parallel.DistributedDataParallel(net(name))  # an unused parameter would be an error in the second step
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        model(x[rank::WORLD], coords[rank::WORLD]).square().mean().backward()
        optimiser.step()
    return model.module.state_dict()


@pytest.mark.parametrize("name", ["cayley", "circulant"])
@pytest.mark.slow
def test_two_processes_train_as_one(name, tmp_path):
    data = torch.randn(4, 9, 32), torch.randn(4, 9, 2)
    first, second = in_two(_train, tmp_path, name, *data)
    model = net(name)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        model(*data).square().mean().backward()
        optimiser.step()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, first[key], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(value, second[key], atol=1e-6, rtol=1e-5)


def _train_sharded(rank, name, image, depth):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = vision_net(name)
    mesh = init_device_mesh("cpu", (WORLD,))
    for block in model.blocks:  # each layer on its own: its parameters are whole only inside its forward
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        model(image[rank::WORLD], depth[rank::WORLD]).square().mean().backward()
        optimiser.step()
    return {key: value.full_tensor() for key, value in model.state_dict().items() if hasattr(value, "full_tensor")}


def vision_net(name):
    torch.manual_seed(0)
    return perturbed(stringpe.vit("vit_test_patch8", encoding=name, coord_dim=3, num_classes=3), 0.05)


@pytest.mark.parametrize("name", ["cayley", "circulant"])
@pytest.mark.slow
def test_layers_sharded_over_two_processes_train_as_one(name, tmp_path):
    data = torch.randn(4, 3, 16, 16), torch.rand(4, 16, 16) + 1
    sharded, _ = in_two(_train_sharded, tmp_path, name, *data)
    model = vision_net(name)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        model(*data).square().mean().backward()
        optimiser.step()
    assert len(sharded) == len(list(model.parameters()))
    for key, value in sharded.items():
        torch.testing.assert_close(model.state_dict()[key], value, atol=1e-5, rtol=1e-4)


def _train_without_depth(rank, image, depth):
    """Steps with and without depth in turn, and the names of parameters that had no gradient in some step."""
    model = nn.parallel.DistributedDataParallel(vision_net("cayley"))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    missing = set()
    for given in (None, None, depth[rank::WORLD], None):
        optimiser.zero_grad()
        model(image[rank::WORLD], given).square().mean().backward()
        missing |= {name for name, p in model.module.named_parameters() if p.grad is None}
        optimiser.step()
    return sorted(missing)


@pytest.mark.slow
def test_a_3d_model_trains_without_depth_in_two_processes(tmp_path):
    """Under DDP a parameter without a gradient stops the second step: the depth layer has one, of zero."""
    data = torch.randn(4, 3, 16, 16), torch.rand(4, 16, 16) + 1
    assert in_two(_train_without_depth, tmp_path, *data) == [[], []]


def _train_in_bfloat16(rank, policy, image):
    """Two steps of a sharded model in half precision; the error where it is refused, else weights and Θ's dtype."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = vision_net_2d()
    mesh = init_device_mesh("cpu", (WORLD,))
    rules = {
        "all": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
        "parameters": MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False),
        "autocast": MixedPrecisionPolicy(),
    }
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=rules[policy])
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for _ in range(2):
            optimiser.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(image[rank::WORLD]).float().square().mean()
            loss.backward()
            optimiser.step()
    except ValueError as error:
        return str(error)
    return {key: value.full_tensor() for key, value in model.state_dict().items() if hasattr(value, "full_tensor")}


def vision_net_2d():
    torch.manual_seed(0)
    return perturbed(stringpe.vit("vit_test_patch8", encoding="cayley", num_classes=3), 0.05)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("all", "coords came in half precision.*cast_forward_inputs=False"),
        ("parameters", "without param_dtype.*autocast"),
    ],
)
@pytest.mark.slow
def test_sharding_that_casts_positions_or_frequencies_says_what_to_do(policy, words, tmp_path):
    for message in in_two(_train_in_bfloat16, tmp_path, policy, torch.randn(4, 3, 16, 16)):
        assert isinstance(message, str)
        assert re.search(words, message)


@pytest.mark.slow
def test_sharding_with_autocast_keeps_frequencies_in_float32(tmp_path):
    """Autocast, which the errors of the test above recommend: training in two processes differs from training in one by
    no more than bfloat16 differs from float32 in one, and all parameters stay in float32."""
    image = torch.randn(4, 3, 16, 16)
    sharded, _ = in_two(_train_in_bfloat16, tmp_path, "autocast", image)
    alone, exact = (_train_alone(image, enabled) for enabled in (True, False))
    assert sharded.keys() == alone.keys()
    assert all(value.dtype == torch.float32 for value in sharded.values())
    apart, rounded = (
        torch.stack([(one[key] - alone[key]).square().sum() for key in alone]).sum().sqrt() for one in (sharded, exact)
    )
    assert apart <= rounded


def _train_alone(image, bfloat16):
    """The parameters after the same two steps in one process."""
    model = vision_net_2d()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = sum(model(image[rank::WORLD]).float().square().mean() for rank in range(WORLD)) / WORLD
        loss.backward()
        optimiser.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}
