"""Actor and critic: losses by hand, what moves, learning; golden lambda returns, their scale, the horizon's growth."""

import copy

import glam_models
import pytest
import torch
from glam_models import golden

from world_models.distributions import symlog_code
from world_models.glam.agent import ReturnScale, lambda_return, percentile
from world_models.glam.config import HorizonConfig
from world_models.glam.imagination import Rollouts
from world_models.glam.train import adam, agent_losses, update_agent

H, B, Z, D = 5, 40, 12, 8


def imagined(seed=0, paid=3.0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return Rollouts(
        sample=normal(H + 1, B, Z),
        h=normal(H + 1, B, D),
        action=torch.randint(glam_models.ACTIONS, (H, B), generator=generator),
        reward=paid * normal(H, B),
        terminated=torch.rand(H, B, generator=generator) < 0.2,
    )


@pytest.mark.parametrize("form", ["textbook", "released"])
def test_the_loss_is_what_the_equations_say(form):
    agent, seen = glam_models.agent(returns=form), imagined(paid=300.0)
    with torch.no_grad():
        for parameter in agent.slow_critic.parameters():
            parameter *= 1.2
    total, metrics = agent_losses(agent, seen)
    code = symlog_code(41)
    features = torch.cat((seen.sample, seen.h), -1)
    logits, slow = agent.critic(features), agent.slow_critic(features)
    value, slow_value = code.decode(logits), code.decode(slow)
    returns, slow_returns = (
        lambda_return(seen.reward, each, seen.terminated, 0.985, 0.95, form) for each in (value, slow_value)
    )
    ordered = returns.detach().flatten().sort().values
    scale = max(1.0, 0.01 * float(ordered[int(0.95 * H * B) - 1] - ordered[int(0.05 * H * B) - 1]))
    assert scale > 5
    advantage = ((returns - value[:-1]) / scale).detach()
    policy = torch.distributions.Categorical(logits=agent.actor(features[:-1]))
    expected = {
        "losses/actor": -(policy.log_prob(seen.action) * advantage).mean(),
        "losses/critic": -(code.encode(returns.detach()) * logits[:-1].log_softmax(-1)).sum(-1).mean(),
        "losses/slow_critic": -(code.encode(slow_returns.detach()) * logits[:-1].log_softmax(-1)).sum(-1).mean(),
        "agent/entropy": policy.entropy().mean(),
        "agent/return": returns.mean(),
    }
    for name, wanted in expected.items():
        torch.testing.assert_close(metrics[name], wanted.detach(), rtol=1e-9, atol=1e-12)
    parts = sum(expected[f"losses/{name}"] for name in ("actor", "critic", "slow_critic"))
    torch.testing.assert_close(total, parts - 3e-4 * expected["agent/entropy"], rtol=1e-9, atol=1e-12)


def test_every_trained_parameter_gets_a_gradient_and_moves():
    agent, seen = glam_models.agent(), imagined()
    before = copy.deepcopy(agent)
    assert torch.equal(*(agent.values(seen.features(), slow=slow)[1] for slow in (False, True)))
    metrics = update_agent(agent, adam(agent, agent.config), seen)
    for (name, ours), old in zip(agent.named_parameters(), before.parameters(), strict=True):
        assert not torch.equal(ours, old), name
        assert name.startswith("slow_critic") == (ours.grad is None), name
    for slow, old, fast in zip(
        agent.slow_critic.parameters(), before.slow_critic.parameters(), agent.critic.parameters(), strict=True
    ):
        torch.testing.assert_close(slow, 0.98 * old + 0.02 * fast)
    assert {"losses/agent", "grad/agent_norm", "agent/return_scale"} < set(metrics)
    assert all(each.ndim == 0 and not each.requires_grad for each in metrics.values())


def test_bfloat16_networks_give_float32_numbers():
    agent = glam_models.agent(bfloat16=True).float()
    seen = imagined()
    narrow = Rollouts(seen.sample.float(), seen.h.float(), seen.action, seen.reward.float(), seen.terminated)
    total, metrics = agent_losses(agent, narrow)
    assert total.dtype == torch.float32
    assert all(each.dtype == torch.float32 for each in metrics.values())
    assert agent.values(narrow.features())[0].dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("form", "name"), [("textbook", "textbook"), ("released", "as_coded")])
def test_golden_lambda_returns(form, name, dtype):
    reward, value, ended = (golden(each, dtype).T for each in ("reward", "value", "termination"))  # time first
    returns = lambda_return(reward, value, ended, 0.985, 0.95, form)
    assert returns.dtype == dtype
    glam_models.close(returns, golden(f"lambda_return_{name}").T, dtype)
    assert torch.equal(returns, lambda_return(reward, value, ended.bool(), 0.985, 0.95, form))


def test_golden_percentiles():
    ours = torch.stack([percentile(golden("percentile_x"), share) for share in (0.05, 0.95)])
    assert torch.equal(ours, golden("percentile_05_95_kth"))
    assert percentile(torch.tensor([3.0, 1.0]), 0.05) == 1.0  # of few entries the smallest


def test_the_scale_follows_the_percentiles_from_zero():
    scale, low, high = ReturnScale(), 0.0, 0.0
    for step in range(30):
        returns = 40 * torch.randn(8, 50, generator=torch.Generator().manual_seed(step))
        low, high = (
            0.99 * old + 0.01 * float(returns.flatten().sort().values[int(share * 400) - 1])
            for old, share in ((low, 0.05), (high, 0.95))
        )
        assert float(scale.update(returns)) == pytest.approx(max(1.0, high - low), rel=1e-4)
    assert high - low > 10 and set(scale.state_dict()) == {"low", "high"} and not list(scale.parameters())


def test_the_horizons_of_paper_and_code():
    assert [HorizonConfig().at(step) for step in (0, 24_999, 25_000, 50_000, 99_999)] == [16, 16, 24, 32, 32]
    smooth = HorizonConfig("smooth", maximum=48)
    assert [smooth.at(step) for step in (0, 3_125, 25_000, 50_000, 100_000)] == [16, 17, 24, 32, 48]
