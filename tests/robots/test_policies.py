import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_toy import KINDS, NET, SPEC, batch, policy

from stringpe.robots.policies import energy_policy
from stringpe.robots.policies.base import PolicyNet, read_spec
from stringpe.robots.policies.energy_policy import Mixture, cosines
from stringpe.robots.policies.noise import add_noise, noise_of, squared_cosine
from stringpe.robots.policies.observer import ImageEncoder, hash_words

ROWS = [("absolute", "none"), ("rope", "none"), ("cayley", "none"), ("circulant", "lift"), ("circulant", "normals")]
ROWS += [("circulant", "lift+normals")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("encoding", "depth"), ROWS)
def test_every_parameter_learns(kind, encoding, depth):
    model = policy(kind, encoding, depth)
    data = batch(depth=depth != "none")
    with torch.no_grad():  # gates and last layers start at zero and let no gradient through
        for name, parameter in model.named_parameters():
            if "modulate" in name or "leave" in name:
                parameter.normal_(std=0.1)
    loss = model(data)
    assert loss.ndim == 0
    loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.numel() and not name.endswith("lift.offset"):  # no registers: all depths move, no score does
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_are_in_the_robots_units_and_range(kind):
    model = policy(kind).eval()
    action = torch.randn(50, 4) * torch.tensor([1.0, 10.0, 0.1, 0.0]) + torch.tensor([0.0, 100.0, 0.0, 7.0])
    model.set_statistics(torch.randn(50, 3), action)
    torch.testing.assert_close(model.denormalise(model.normalise(action)), action)
    assert model.normalise(action)[:, :3].abs().max() <= 1 + 1e-5
    chunk = model.predict_action_chunk(batch())
    assert chunk.shape == (3, NET.chunk, 4)
    assert (chunk >= action.amin(0) - 1e-4).all()
    assert (chunk <= action.amax(0) + 1e-4).all()
    assert (chunk[..., 3] == 7).all()  # a joint that stayed in all demonstrations
    torch.testing.assert_close(model(batch(), predict=True).shape, chunk.shape)


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_looks_once_in_execute_calls(kind):
    model = policy(kind).eval()
    looks = []
    model.observer.register_forward_hook(lambda *_: looks.append(1))
    observation = {
        "observation.state": np.zeros(3, np.float32),
        "observation.images.top": np.zeros((16, 16, 3), np.uint8),
        "observation.images.wrist": np.zeros((16, 16, 3), np.uint8),
        "task": "pick the cup",
    }
    torch.manual_seed(1)
    actions = [model.select_action(observation) for _ in range(4)]
    assert len(looks) == 2  # execute is 3
    assert all(a.shape == (4,) and a.dtype == np.float32 for a in actions)
    model.reset()
    torch.manual_seed(1)
    np.testing.assert_array_equal(model.select_action(observation), actions[0])
    tensors = {k: v for k, v in batch().items() if k != "action"}
    model.reset()
    assert model.select_action(tensors).shape == (3, 4)


def observations(count, seed=0, depth=False):
    """What environments would give, one dictionary of arrays each."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        one = {"observation.state": rng.normal(size=3).astype(np.float32), "task": "pick the cup"}
        for camera in SPEC.cameras:
            one[f"observation.images.{camera}"] = rng.integers(0, 256, (16, 16, 3), np.uint8)
            if depth:
                one[f"observation.depth.{camera}"] = rng.uniform(0.5, 1.5, (16, 16)).astype(np.float32)
        found.append(one)
    return found


@pytest.mark.parametrize("depth", [None, "lift"])
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=5, deadline=None)
def test_a_plan_does_not_depend_on_the_other_environments(kind, depth, data):
    """To the last bit: alone, in a batch of any size, at any position."""
    model = policy(kind, depth=depth).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    count = data.draw(st.integers(1, 12))
    seen = observations(count, data.draw(st.integers(0, 1000)), depth is not None)
    which = data.draw(st.integers(0, count - 1))
    seeds = data.draw(st.lists(st.integers(0, 2**31), min_size=count, max_size=count))
    together = model.plan_actions(seen, [torch.Generator().manual_seed(s) for s in seeds])
    alone = model.plan_actions([seen[which]], [torch.Generator().manual_seed(seeds[which])])
    assert together.shape == (count, NET.execute, 4)
    np.testing.assert_array_equal(together[which], alone[0])


@pytest.mark.parametrize("kind", KINDS)
def test_plans_are_the_chunks_that_a_single_policy_would_carry_out(kind):
    """Other batch sizes round differently, so this holds to rounding; the noise is the same exactly."""
    model = policy(kind).eval()
    seen = observations(3)
    plans = model.plan_actions(seen, [torch.Generator().manual_seed(s) for s in range(3)])
    for number, observation in enumerate(seen):
        model.reset()
        torch.manual_seed(number)
        actions = [model.select_action(observation) for _ in range(NET.execute)]
        np.testing.assert_allclose(plans[number], np.stack(actions), rtol=1e-3, atol=1e-4)


def test_uint8_and_floats_are_the_same_picture():
    model = policy().eval()
    data = batch()
    whole = {k: ((v + 1) * 127.5).round().to(torch.uint8) if "images" in k else v for k, v in data.items()}
    floats = {k: v.float() / 127.5 - 1 if "images" in k else v for k, v in whole.items()}
    torch.testing.assert_close(model.observe(whole), model.observe(floats), rtol=1e-4, atol=1e-5)


def test_cameras_states_and_tasks_are_distinguished():
    model = policy().eval()
    data = batch()
    seen = model.observe(data).mean(1)
    swapped = data | {
        "observation.images.top": data["observation.images.wrist"],
        "observation.images.wrist": data["observation.images.top"],
    }
    for other in (swapped, data | {"task": ["place it"] * 3}, data | {"observation.state": torch.zeros(3, 3)}):
        assert (model.observe(other).mean(1) - seen).abs().max() > 1e-3


def test_the_image_encoder_does_not_say_where_but_the_policy_knows():
    model = policy(encoding="rope").eval()
    with torch.no_grad():
        for parameter in model.parameters():  # away from the start, whose small weights hardly move a narrow model
            parameter.add_(0.2 * torch.randn_like(parameter))
    data = batch(1)
    data["observation.images.top"][:] = 0.5
    data["observation.images.top"][..., :4, :4] = 1.0
    moved = {k: v.roll(4, -1) if k.endswith("top") else v for k, v in data.items() if k != "task"} | {
        "task": data["task"]
    }
    assert (model.observe(data).mean(1) - model.observe(moved).mean(1)).abs().max() > 1e-3


def test_words_are_hashed_the_same_everywhere():
    found = hash_words(["Pick the  CUP!", "pick the cup", "", "a " * 40])
    assert found.shape == (4, 16)
    assert found[0].tolist() == found[1].tolist()
    assert found[2].sum() == 0
    assert (found[3] > 0).all()
    assert found[1, :3].unique().numel() == 3


def test_the_spec_travels_with_the_weights():
    model = policy()
    assert read_spec(model.state_dict()) == SPEC
    with pytest.raises(ValueError, match="not the checkpoint of a policy"):
        read_spec({})


def test_repeats_only_add_noises():
    torch.manual_seed(0)
    once, often = policy(), policy(repeats=3)
    seen = []
    often.decoder.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    often(batch())
    assert seen == [9]
    once.load_state_dict(often.state_dict())


def test_ranking_scores_are_energy_and_proposal():
    """−E − log q is what the loss ranks: with f = 0 every candidate scores the same, and the loss is log(K + 1)."""
    model = policy("energy")
    data = batch()
    seen, action = model.observe(data), model.normalise(data["action"])
    proposal = model.propose(seen)
    torch.manual_seed(1)
    noisy = action + energy_policy._NOISE * torch.randn_like(action)
    likelihood = proposal.log_prob(noisy[:, None]).mean() / action[0].numel()
    wanted = math.log(5) - likelihood + proposal.distance(action)
    torch.manual_seed(1)
    torch.testing.assert_close(model.loss(seen, action), wanted, rtol=1e-4, atol=1e-4)
    nearest = torch.stack([(action - proposal.mean[:, m]).square().mean((1, 2)) for m in range(4)]).amin(0)
    torch.testing.assert_close(proposal.distance(action), nearest.mean())
    y, _ = proposal.sample(4)
    energy = model.energy(y, model.correction.memory(seen), proposal)
    torch.testing.assert_close(energy, -proposal.log_prob(y))


def test_the_proposal_is_a_mixture_of_gaussians():
    torch.manual_seed(0)
    basis = cosines(5)
    torch.testing.assert_close(basis @ basis.mT, torch.eye(5))
    log_std, mean = 0.3 * torch.randn(1, 2, 5, 1), torch.randn(1, 2, 5, 1)
    mixture = Mixture(torch.randn(1, 2).log_softmax(-1), mean, log_std, basis)
    covariance = basis.mT @ torch.diag_embed(log_std[0, :, :, 0].exp().square()) @ basis
    each = torch.distributions.MultivariateNormal(mean[0, :, :, 0], covariance)
    wanted = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=mixture.log_weight[0]), each)
    y = torch.randn(1, 7, 5, 1)
    torch.testing.assert_close(mixture.log_prob(y)[0], wanted.log_prob(y[0, :, :, 0]), rtol=1e-4, atol=1e-4)
    samples, _ = mixture.sample(40_000)
    torch.testing.assert_close(samples[0, :, :, 0].mean(0), wanted.mean, rtol=0, atol=0.05)
    torch.testing.assert_close(samples[0, :, :, 0].var(0), wanted.variance, rtol=0.05, atol=0.05)
    slope, std = torch.randn(1, 3, 5, 1), log_std[:, :1].exp().expand(1, 3, 5, 1)
    torch.testing.assert_close(mixture.precondition(slope, std)[0, :, :, 0], slope[0, :, :, 0] @ covariance[0])


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_near(kind):
    model = policy(kind)
    data = batch(8)
    losses = []
    for enabled in (False, True):
        torch.manual_seed(2)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            losses.append(model(data))
    torch.testing.assert_close(*losses, rtol=0.02, atol=0.02)
    mixture = Mixture(torch.zeros(1, 1), torch.zeros(1, 1, 6, 4), torch.full((1, 1, 6, 4), -4.0), cosines(6))
    y = 0.1 * torch.randn(1, 3, 6, 4)
    with torch.autocast("cpu", torch.bfloat16):
        half = mixture.log_prob(y)
    torch.testing.assert_close(half, mixture.log_prob(y))


def test_a_demonstration_is_not_ranked_by_its_smoothness(monkeypatch):
    """Around the right mean, demonstrations and samples of the narrowest proposal cannot be distinguished."""
    model, given = policy("energy"), batch(400)
    flat = given["action"][:, :1].expand(-1, NET.chunk, -1)
    log_std = torch.full((400, 1, NET.chunk, SPEC.action_dim), math.log(energy_policy._NOISE))
    exact = Mixture(torch.zeros(400, 1), flat[:, None], log_std, cosines(NET.chunk))
    ranked = []

    def energy(y, memory, proposal):
        ranked.append(y - flat[:, None])
        return torch.zeros(y.shape[:2])

    monkeypatch.setattr(model, "propose", lambda seen: exact)
    monkeypatch.setattr(model, "energy", energy)
    model.loss(torch.zeros(400, 3, NET.dim), flat)
    spread = (exact.basis @ ranked[0]).std((0, 3))  # (1 + negatives, frequencies)
    torch.testing.assert_close(spread, torch.full_like(spread, energy_policy._NOISE), rtol=0.12, atol=0)


def test_langevin_goes_down_the_energy():
    model = policy("energy", langevin_steps=0, candidates=1).eval()
    with torch.no_grad():
        for name, parameter in model.correction.named_parameters():
            if "modulate" in name or "leave" in name:
                parameter.normal_(std=0.3)
    seen = model.observe(batch(8))

    def reached(steps):
        model.langevin_steps = steps
        torch.manual_seed(3)
        y = model.sample(seen)
        with torch.no_grad():
            return model.energy(y[:, None], model.correction.memory(seen), model.propose(seen)).mean()

    assert reached(40) < reached(0)


def test_foreign_encoders_give_patch_tokens():
    class Tower(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.patch = torch.nn.Conv2d(3, 8, 4, 4)

        def forward(self, image):
            patches = self.patch(image).flatten(2).mT
            return torch.cat([patches.mean(1, keepdim=True), patches], 1)  # a class token in front

    tower = Tower()
    encoder = ImageEncoder(tower, dim=8, patch_size=4, freeze=True)
    image = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(encoder(image, None), tower.patch(image).flatten(2).mT)
    assert not encoder(image, None).requires_grad
    with pytest.raises(ValueError, match="pass dim and patch_size"):
        ImageEncoder(tower)
    with pytest.raises(ValueError, match=r"gave \(2, 17, 8\), not tokens"):
        ImageEncoder(tower, dim=9, patch_size=4)(image, None)


def test_what_a_policy_cannot_look_at_is_named():
    model = policy(depth="lift")
    data = batch()
    with pytest.raises(ValueError, match=r"lacks observation.depth.top, observation.depth.wrist; it has action"):
        model(data)
    data = batch(depth=True)
    with pytest.raises(ValueError, match=r"lacks observation\.images\.wrist"):
        model({k: v for k, v in data.items() if k != "observation.images.wrist"})
    with pytest.raises(ValueError, match="16 × 16 pixels"):
        model(data | {"observation.images.top": torch.rand(3, 3, 8, 8)})
    with pytest.raises(ValueError, match=r"observation\.state must be \(b, 3\)"):
        model(data | {"observation.state": torch.zeros(3, 5)})
    with pytest.raises(ValueError, match=r"action must be \(b, 6, 4\)"):
        model(data | {"action": torch.zeros(3, 6, 5)})
    with pytest.raises(ValueError, match="execute must be from 1 to chunk = 4"):
        PolicyNet(chunk=4, execute=5)


def test_actions_that_are_not_finite_are_refused():
    model = policy().eval()
    with torch.no_grad():
        model.decoder.leave.bias.fill_(math.nan)
    with pytest.raises(ValueError, match="not finite"):
        model.predict_action_chunk(batch())


def test_a_policy_is_copied_and_restored_whole():
    model = policy().eval()
    model.set_statistics(torch.randn(9, 3), torch.randn(9, 4))
    other = policy(encoding="cayley").eval()
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    chunks = []
    for each in (model, other):
        generators = [torch.Generator().manual_seed(row) for row in range(3)]
        chunks.append(each.predict_action_chunk(batch(), generators))
    torch.testing.assert_close(*chunks)


@pytest.mark.parametrize("kind", KINDS)
def test_a_blind_policy_sees_its_state_only_when_it_acts(kind):
    model = policy(kind, net=dataclasses.replace(NET, blind=1.0))
    one, other = batch(), batch()
    other["observation.state"] = one["observation.state"] + 1
    torch.testing.assert_close(model.observe(one), model.observe(other))
    model.eval()
    assert (model.observe(one) - model.observe(other)).abs().max() > 1e-3
    with pytest.raises(ValueError, match="blind is a share"):
        PolicyNet(blind=1.5)


def test_half_blind_hides_the_state_of_about_half_the_examples():
    model = policy(net=dataclasses.replace(NET, blind=0.5))
    one, other = batch(200), batch(200)
    other["observation.state"] = one["observation.state"] + 1
    torch.manual_seed(3)
    seen = model.observe(one)
    torch.manual_seed(3)
    told = (seen - model.observe(other)).abs().amax((1, 2)) > 1e-6
    assert 70 <= int(told.sum()) <= 130  # 4 standard deviations around 100


def test_a_decoder_of_the_clean_chunk_samples_what_it_gives():
    model = policy(prediction="sample").eval()
    wanted = torch.linspace(-0.9, 0.9, NET.chunk * 4).reshape(1, NET.chunk, 4)
    model.decoder.forward = lambda x, condition, memory: wanted.expand(len(x), -1, -1)
    torch.testing.assert_close(model.sample(torch.zeros(3, 2, NET.dim)), wanted.expand(3, -1, -1), rtol=0, atol=1e-5)
    assert float(model.loss(torch.zeros(3, 2, NET.dim), wanted.expand(3, -1, -1))) == 0
    with pytest.raises(ValueError, match="prediction must be one of epsilon, sample"):
        policy(prediction="velocity")


def test_noise_is_what_lies_over_the_clean_chunk():
    signal = squared_cosine(100)
    clean, noise = torch.rand(2, 4, 4) * 2 - 1, torch.randn(2, 4, 4)
    for t in (0, 50, 99):
        x = add_noise(clean, noise, torch.full((2,), t), signal)
        rest = (1 - float(signal[t])) ** 0.5  # what float32 leaves of the noise at step 0 is less exact
        torch.testing.assert_close(noise_of(x, clean, t, signal), noise, rtol=0, atol=1e-6 / rest)
