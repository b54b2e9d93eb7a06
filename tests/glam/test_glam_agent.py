"""Actor and critic: sizes, every term of the loss by hand, what moves and what does not, learning."""

import copy

import glam_models
import pytest
import torch
from torch.nn import functional as F

from dqn_memory.runs.errors import UserError
from world_models.distributions import symlog
from world_models.glam.agent import Agent, lambda_return, losses, optimizer_for, update
from world_models.glam.config import AgentConfig
from world_models.glam.imagination import Rollouts

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


@pytest.mark.parametrize("actions", [4, 18])
def test_parameters_at_full_size(actions):
    with torch.device("meta"):
        agent = Agent(AgentConfig(), 32 * 32 + 256, actions)
    count = lambda module: sum(p.numel() for p in module.parameters())  # noqa: E731
    assert count(agent.actor) == 919_552 + 513 * actions
    assert count(agent.critic) == count(agent.slow_critic) == 1_050_367
    assert count(agent) == 3_020_286 + 513 * actions
    assert sum(p.numel() for p in agent.trainable()) == count(agent) - 1_050_367
    assert not any(p.requires_grad for p in agent.slow_critic.parameters())


def test_the_slow_critic_begins_as_the_critic():
    agent = glam_models.agent()
    features = imagined().features()
    assert torch.equal(agent.slow_values(features), agent.values(features)[1])


@pytest.mark.parametrize("form", ["textbook", "released"])
def test_the_loss_is_what_the_equations_say(form):
    agent, seen = glam_models.agent(returns=form), imagined(paid=300.0)
    with torch.no_grad():
        for parameter in agent.slow_critic.parameters():
            parameter *= 1.2
    total, metrics = losses(agent, seen)
    points = torch.linspace(-20, 20, 41, dtype=torch.float64)
    features = torch.cat((seen.sample, seen.h), -1)
    logits, slow = agent.critic(features), agent.slow_critic(features)
    value, slow_value = (decoded(each, points) for each in (logits, slow))
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
        "losses/critic": two_hot_entropy(logits[:-1], returns, points),
        "losses/slow_critic": two_hot_entropy(logits[:-1], slow_returns, points),
        "agent/entropy": policy.entropy().mean(),
        "agent/return": returns.mean(),
    }
    for name, wanted in expected.items():
        torch.testing.assert_close(metrics[name], wanted.detach(), rtol=1e-9, atol=1e-12)
    parts = sum(expected[f"losses/{name}"] for name in ("actor", "critic", "slow_critic"))
    torch.testing.assert_close(total, parts - 3e-4 * expected["agent/entropy"], rtol=1e-9, atol=1e-12)


def decoded(logits, points):
    mean = (logits.softmax(-1) * points).sum(-1)
    return mean.sign() * (mean.abs().exp() - 1)


def two_hot_entropy(logits, target, points):
    place = (symlog(target.detach()) + 20).clamp(0, 40)
    low = place.floor().long().clamp(max=39)
    share = (place - low).unsqueeze(-1)
    weights = F.one_hot(low, 41) * (1 - share) + F.one_hot(low + 1, 41) * share
    return -(weights * logits.log_softmax(-1)).sum(-1).mean()


def test_every_trained_parameter_gets_a_gradient_and_moves():
    agent, seen = glam_models.agent(), imagined()
    optimizer, before = optimizer_for(agent), copy.deepcopy(agent)
    metrics = update(agent, optimizer, seen)
    for (name, ours), old in zip(agent.named_parameters(), before.parameters(), strict=True):
        assert not torch.equal(ours, old), name
        assert name.startswith("slow_critic") == (ours.grad is None), name
    for slow, old, fast in zip(
        agent.slow_critic.parameters(), before.slow_critic.parameters(), agent.critic.parameters(), strict=True
    ):
        torch.testing.assert_close(slow, 0.98 * old + 0.02 * fast)
    assert {"losses/agent", "grad/agent_norm", "agent/return_scale"} < set(metrics)
    assert all(each.ndim == 0 and not each.requires_grad for each in metrics.values())


def test_the_critic_learns_from_its_own_loss_alone_and_so_does_the_actor():
    seen = imagined()
    for name, other in (("losses/actor", "critic"), ("losses/critic", "actor")):
        agent = glam_models.agent()
        features = seen.features()
        if name == "losses/actor":
            policy = agent.policy(features[:-1]).log_softmax(-1)
            policy.gather(-1, seen.action.unsqueeze(-1)).mean().backward()
        else:
            agent.values(features)[1].mean().backward()
        assert all(p.grad is None for p in getattr(agent, other).parameters())


def test_long_gradients_are_clipped():
    """Adam's first step does not depend on the length of a gradient, but its second moment does."""
    norms = []
    for clip in (1e-3, 100.0):
        agent = glam_models.agent(max_grad_norm=clip)
        optimizer = optimizer_for(agent)
        reported = float(update(agent, optimizer, imagined())["grad/agent_norm"])
        seen = torch.cat([optimizer.state[p]["exp_avg"].flatten() for p in agent.trainable()])
        norms.append((reported, float(seen.norm()) / 0.1))
    assert norms[0][0] == norms[1][0] == pytest.approx(norms[1][1])
    assert norms[0][1] == pytest.approx(1e-3, rel=1e-3)


def test_bfloat16_networks_give_float32_numbers():
    agent = glam_models.agent(bfloat16=True).float()
    seen = imagined()
    narrow = Rollouts(seen.sample.float(), seen.h.float(), seen.action, seen.reward.float(), seen.terminated)
    total, metrics = losses(agent, narrow)
    assert total.dtype == torch.float32
    assert all(each.dtype == torch.float32 for each in metrics.values())
    assert agent.values(narrow.features())[0].dtype == torch.bfloat16


def test_an_agent_learns_which_action_pays():
    """A bandit: action 2 pays 1 in every state; the horizon and the critic must not be in the way."""
    agent = glam_models.agent(features=4, learning_rate=3e-3)
    optimizer, generator = optimizer_for(agent), torch.Generator().manual_seed(0)
    states = torch.randn(H + 1, 64, 4, generator=generator, dtype=torch.float64)
    for _ in range(60):
        logits = agent.policy(states[:-1]).detach()
        action = torch.multinomial(logits.softmax(-1).flatten(0, 1), 1, generator=generator).view(H, 64)
        reward = (action == 2).double()
        update(agent, optimizer, Rollouts(states, states[..., :0], action, reward, torch.zeros(H, 64).bool()))
    assert float(agent.policy(states).detach().softmax(-1)[..., 2].mean()) > 0.9


def test_configs_that_cannot_work_are_one_sentence():
    wrong = {
        "gamma": 1.5, "lam": -0.1, "hidden": 0, "layers": 0, "bins": 1, "learning_rate": 0.0, "entropy_weight": -1.0,
        "slow_decay": 2.0, "max_grad_norm": 0.0,
    }  # fmt: skip
    for name, value in wrong.items():
        with pytest.raises(UserError, match=f"--{name.replace('_', '-')} "):
            Agent(AgentConfig(**{name: value}), 20, 3)
