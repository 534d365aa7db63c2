"""What of a model is compiled: its layers, each once, and what surrounds them."""

import copy
import itertools

import pytest
import torch

from stringpe.data.order import Place
from stringpe.models.blocks import Layers
from stringpe.tasks import create
from stringpe.training.compiling import compile_model
from task_recipes import FAMILIES


def test_compiling_says_that_it_compiles(capsys, monkeypatch):
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **options: None)
    single = torch.nn.ModuleList([torch.nn.Linear(2, 2)])  # operations, not layers
    layers = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(2, 2)) for _ in range(2)])
    model = torch.nn.Sequential(single, layers)
    compile_model(model, quiet=False)
    assert "compiling 2 layers with torch.compile: the first step takes longer" in capsys.readouterr().err
    compile_model(model)
    assert not capsys.readouterr().err


# Torch's compiler looks at `.grad` of tensors that have none, and ignores the warning that this gives.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:the policy's image encoder starts at random:UserWarning")
@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "relations"])  # whose model is written by hand
def test_everything_is_compiled_in_every_task(family, tmp_path, monkeypatch):
    """torch.compile runs what it cannot take as it is written, without a word. Graphs end at the layers alone, all of
    which share one or two: the first may lack what the others have, and towers differ."""
    graphs = []
    own = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **options: own(self, **options, backend=keep))

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    task = create(next(iter(FAMILIES[family](tmp_path))))
    model = task.model()
    plain = copy.deepcopy(model)
    batches = list(itertools.islice(task.batches(0, Place()), 2))
    torch.manual_seed(0)
    wanted = [task.loss(plain, batch) for batch in batches]
    compile_model(model)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    for batch, loss in zip(batches, wanted, strict=True):
        found = task.loss(model, batch)
        torch.testing.assert_close(found, loss, rtol=1e-5, atol=1e-6)
        found.backward()
    breaks = torch._dynamo.utils.counters["graph_break"]
    assert breaks
    assert all("_run_in_turn" in reason for reason in breaks)
    layers = [m for m in model.modules() if isinstance(m, Layers)]
    assert len(graphs) > len(layers)


def test_a_list_of_layers_of_torchs_own_is_compiled_layer_by_layer(monkeypatch):
    """A graph around it would take all of its layers in."""
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **options: compiled.append(self))
    layers = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(2, 2)) for _ in range(2)])
    compile_model(torch.nn.Sequential(layers))
    assert compiled == list(layers)
    ours = Layers([torch.nn.Sequential(torch.nn.Linear(2, 2)) for _ in range(2)])
    model = torch.nn.Sequential(ours)
    compiled.clear()
    compile_model(model)
    assert compiled == [*ours, model]


def test_compiled_layers_are_the_layers(monkeypatch):
    own = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **options: own(self, **options, backend="eager"))
    layers = Layers([torch.nn.Linear(3, 3) for _ in range(3)])
    x = torch.randn(2, 3)
    wanted = layers(x, [{}] * 3)
    layers.compile_each()
    assert torch.equal(layers(x, [{}] * 3), wanted)
    other = copy.deepcopy(layers)  # runs its own layers
    with torch.no_grad():
        other[0].weight.zero_()
    assert not torch.equal(other(x, [{}] * 3), wanted)
    assert torch.equal(layers(x, [{}] * 3), wanted)
    with pytest.raises(ValueError, match="zip"):
        layers(x, [{}] * 2)
