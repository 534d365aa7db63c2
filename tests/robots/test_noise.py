import diffusers
import pytest
import torch

from stringpe.robots.policies.noise import add_noise, ddim_step, squared_cosine, trailing_steps

OPTIONS = {"num_train_timesteps": 100, "beta_schedule": "squaredcos_cap_v2", "prediction_type": "epsilon"}


def test_the_schedule_is_that_of_diffusers():
    theirs = diffusers.DDPMScheduler(**OPTIONS)
    torch.testing.assert_close(squared_cosine(100).float(), theirs.alphas_cumprod, rtol=1e-4, atol=1e-7)
    x, noise, t = torch.randn(8, 5, 3), torch.randn(8, 5, 3), torch.randint(100, (8,))
    torch.testing.assert_close(add_noise(x, noise, t, squared_cosine(100)), theirs.add_noise(x, noise, t))


@pytest.mark.parametrize("few", [1, 8, 10, 16, 100])
def test_ddim_is_that_of_diffusers(few):
    theirs = diffusers.DDIMScheduler(**OPTIONS, clip_sample=True, timestep_spacing="trailing", set_alpha_to_one=True)
    theirs.set_timesteps(few)
    steps = trailing_steps(100, few)
    assert theirs.timesteps.tolist() == steps
    x = y = torch.randn(4, 5, 3)
    for t, before in zip(steps, [*steps[1:], -1], strict=True):
        noise = torch.tanh(x) + 0.1  # a stand-in for a model
        x = ddim_step(x, noise, t, before, squared_cosine(100))
        if few in (1, 10, 100):  # where its notion of the step before, t − T // few, is a step that it takes
            y = theirs.step(torch.tanh(y) + 0.1, t, y).prev_sample
    if few in (1, 10, 100):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


def test_the_right_noise_gives_the_clean_sample_back():
    signal = squared_cosine(100)
    clean = torch.rand(4, 5, 3, dtype=torch.float64) * 2 - 1
    noise = torch.randn_like(clean)
    x = add_noise(clean, noise, torch.full((4,), 60), signal)
    torch.testing.assert_close(ddim_step(x, noise, 60, -1, signal), clean)


def test_too_many_steps_are_refused():
    with pytest.raises(ValueError, match="from 1 to train_steps = 100, got 101"):
        trailing_steps(100, 101)
