"""Lines of POPGym's cart-poles and pendulums: controllers on what is shown, on two observations, and on a filter."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from envs.baselines.best import BY_RULES, Best, Budget, Played, exact_return, lined
from envs.baselines.players import Player
from envs.popgym.control import (
    HalfCartPole,
    NoisyPositionOnlyCartPole,
    NoisyPositionOnlyPendulum,
    PositionOnlyPendulum,
    VelocityOnlyCartPole,
)
from envs.worlds.cart_pole import START, CartPole, PoleState

MOST = exact_return(1.0, BY_RULES)
TICK, TORQUE, SPEED = 0.05, 2.0, 8.0  # of a pendulum
TINY_NOISE = 0.002  # which the rules for exact positions bear
T = TypeVar("T")
Model = Callable[[Tensor, Tensor], Tensor]  # from states (N, d) and actions (N,) to the next states


class Filter:
    """An extended Kalman filter: the means (N, d) and covariances (N, d, d) of states that move without chance."""

    def __init__(self, model: Model, means: Tensor, variances: Tensor) -> None:
        self.model, self.means = model, means
        self.spread = torch.diag(variances).expand(len(means), -1, -1)

    def move(self, action: Tensor) -> None:
        """Move by actions (N,); slopes are differences of the model."""
        count, size = self.means.shape
        aside = 1e-4 * torch.cat([torch.zeros(1, size), torch.eye(size)]).to(self.means)  # (d + 1, d)
        around = (self.means[:, None] + aside).reshape(-1, size)
        moved = self.model(around, action.repeat_interleave(size + 1)).view(count, size + 1, size)
        self.means = moved[:, 0]
        slopes = ((moved[:, 1:] - moved[:, :1]) / 1e-4).mT
        self.spread = slopes @ self.spread @ slopes.mT

    def see(self, column: int, seen: Tensor, mean: Tensor, slope: Tensor, noise: float, high: float) -> None:
        """Correct by a number (N,) that is seen with noise and clipped to +-high.

        Without both it would be `mean` (N,), which rises with one column of the states by `slope` (N,).
        """
        expected, share, variance = clipped(mean, max(noise, 1e-6), high)
        slope = slope * share
        gain = self.spread[:, :, column] * slope[:, None]  # (N, d)
        gain = gain / (gain[:, column] * slope + variance + 1e-12)[:, None]
        self.means = self.means + gain * (seen.double() - expected)[:, None]
        self.spread = self.spread - gain[:, :, None] * (slope[:, None] * self.spread[:, column])[:, None]


def density(standard: Tensor) -> Tensor:
    """Return the density of standard normal numbers."""
    return (-standard * standard / 2).exp() / math.sqrt(2 * math.pi)


def clipped(mean: Tensor, deviation: float, high: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean (N,), probability of not being clipped, and variance of a normal number clipped to +-high."""
    low, top = ((end - mean) / deviation for end in (-high, high))
    below, above = torch.special.ndtr(low), torch.special.ndtr(-top)
    at_low, at_top = density(low), density(top)
    inside = 1 - below - above
    expected = high * (above - below) + mean * inside + deviation * (at_low - at_top)
    square = high**2 * (above + below) + (mean**2 + deviation**2) * inside
    square = square + deviation * ((mean - high) * at_low - (mean + high) * at_top)
    return expected, inside, (square - expected**2).clamp(min=0)


# ---- cart-poles ------------------------------------------------------------------------------------------------------
def cart_bounds(world: HalfCartPole, budget: Budget) -> Best:
    """Push by the sign of a sum of what is seen, of its change and the last push, or of a filter's state."""
    play = Played(world, budget)
    noise = float(world.noise.deviation) if isinstance(world, NoisyPositionOnlyCartPole) else 0.0
    rules = VELOCITY if isinstance(world, VelocityOnlyCartPole) else nearest(POSITION, noise)
    observation = play("a linear rule", pusher(rules[:2]))
    one_step = play("a linear rule on two observations", pusher(rules[2:]))
    perfect = play("a linear rule on a filter", steersman(world, noise, nearest(STEERING, noise)))
    return lined(observation, observation, one_step, perfect, MOST)


# Weights found by the cross-entropy method: of two numbers; of two numbers, their changes and the last push; by noise.
VELOCITY = [0.1, 1.0, 0.04, 0.25, 1.0, 0.5, 0.0]
POSITION = {
    0.0: [-0.42, 1.0, 0.004, 0.05, 0.1, 1.0, 0.0],
    0.1: [-0.09, 1.0, 0.0, 1.0, -0.57, -0.02, -0.1],
    0.2: [-0.09, 1.0, 0.0, 1.0, -0.57, -0.02, -0.12],
    0.3: [-0.09, 1.0, 0.0, 1.0, -0.57, -0.02, -0.2],
}
STEERING = {  # of position, speed, angle and spin
    0.0: (0.01, 0.1, 1.0, 0.25),
    0.1: (0.01, 0.07, 1.0, 0.2),
    0.2: (0.0, 0.004, 1.0, 0.19),
    0.3: (0.0, -0.016, 1.0, 0.24),
}


def nearest(rules: Mapping[float, T], noise: float) -> T:
    """Choose the rule of the nearest noise, by the ratio of both; one below TINY_NOISE counts as that."""
    return rules[min(rules, key=lambda known: abs(math.log(max(known, TINY_NOISE) / max(noise, TINY_NOISE))))]


def pusher(weights: Sequence[float]) -> Player:
    """Push by the sign of a weighted sum of the two numbers seen, and of their changes and the last push."""
    scale = torch.tensor(weights, dtype=torch.float64)
    before: Tensor | None = None  # (N, 3): what was seen, and the push

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal before
        seen, weights = observation.double(), scale.to(observation.device)
        total = seen @ weights[:2]
        if before is not None and len(weights) > 2:
            total = total + (seen - before[:, :2]) @ weights[2:4] + before[:, 2] * weights[4]
        action = (total > 0).long()
        before = torch.cat([seen, 2.0 * action[:, None] - 1], 1)
        return action

    return act


def steersman(world: HalfCartPole, noise: float, steering: Sequence[float]) -> Player:
    """Filter position, speed, angle and spin, and push by the sign of their weighted sum."""
    model, weights = CartPole(device=world.device), torch.tensor(steering, dtype=torch.float64, device=world.device)
    columns = range(4)[world.seen]
    known: Filter | None = None
    action = torch.empty(0)

    def move(bodies: Tensor, action: Tensor) -> Tensor:
        steps, returns = model.counters(len(bodies))
        body: Tensor = model.step(PoleState(bodies, steps, returns, bodies), action, bodies[:, :0])[0].body
        return body

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal known, action
        if known is None:
            known = Filter(move, weights.expand(len(observation), -1) * 0, torch.full_like(weights, START**2 / 3))
        else:
            known.move(action)
        for number, column in enumerate(columns):
            mean = known.means[:, column]
            known.see(
                column, observation[:, number], mean, torch.ones_like(mean), noise, min(float(world.high[number]), 99.0)
            )
        action = (known.means @ weights > 0).long()
        return action

    return act


# ---- pendulums -------------------------------------------------------------------------------------------------------
def swing(states: Tensor, torque: Tensor) -> Tensor:
    """Move angles and speeds (N, 2) by torques (N,), as the World does."""
    angle, speed = states.unbind(1)
    speed = (speed + (15 * angle.sin() + 3 * torque) * TICK).clip(-SPEED, SPEED)
    angle = angle + speed * TICK
    return torch.stack([angle - 2 * math.pi * (angle / (2 * math.pi)).round(), speed], 1)


class SwingUp:
    """The best torques by dynamic programming on a grid of A angles and B speeds."""

    angles, speeds = 161, 129

    def __init__(self, steps: int, device: torch.device) -> None:
        self.torques = torch.linspace(-TORQUE, TORQUE, 9, dtype=torch.float64, device=device)
        angle, speed = (torch.linspace(-end, end, count, dtype=torch.float64, device=device)
                        for end, count in ((math.pi, self.angles), (SPEED, self.speeds)))  # fmt: skip
        grid = torch.cartesian_prod(angle, speed)  # (A * B, 2)
        cost, corners = self.cost(grid), self.corners(self.after(grid))
        values = torch.zeros(steps + 1, len(grid), dtype=torch.float64, device=device)  # by the steps left
        for left in range(1, steps + 1):
            values[left] = (self.between(values[left - 1], *corners) - cost).amax(1)
        self.values = values

    def cost(self, states: Tensor) -> Tensor:
        """Return the costs (N, torques) of one step."""
        return (states[:, 0] ** 2 + 0.1 * states[:, 1] ** 2)[:, None] + 0.001 * self.torques**2

    def after(self, states: Tensor) -> Tensor:
        """Move states (N, 2) by every torque: (N * torques, 2)."""
        count = len(self.torques)
        return swing(states.repeat_interleave(count, 0), self.torques.repeat(len(states)))

    def corners(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the four grid points (4, N) around states (N, 2), and their weights."""
        size = torch.tensor([self.angles - 1, self.speeds - 1], device=states.device)
        place = (states / torch.tensor([math.pi, SPEED], device=states.device) + 1) / 2 * size
        low = place.floor().clamp(min=0).minimum(size - 1)
        (along, across), (left, down) = (place - low).unbind(1), low.long().unbind(1)
        first = left * self.speeds + down
        weights = torch.stack([(1 - along) * (1 - across), (1 - along) * across, along * (1 - across), along * across])
        return torch.stack([first, first + 1, first + self.speeds, first + self.speeds + 1]), weights

    def between(self, values: Tensor, points: Tensor, weights: Tensor) -> Tensor:
        """Interpolate values (A * B,) at states after every torque: (N, torques)."""
        return (values[points] * weights).sum(0).view(-1, len(self.torques))

    def best(self, states: Tensor, left: int) -> Tensor:
        """Choose torques (N,) at states (N, 2) with some steps left."""
        value = self.between(self.values[left - 1], *self.corners(self.after(states))) - self.cost(states)
        return self.torques[value.argmax(1)]


def pendulum_bounds(world: PositionOnlyPendulum, budget: Budget) -> Best:
    """Push up by the sine, swing up by the change of the angle, or by a filter's state."""
    play, plan = Played(world, budget), SwingUp(world.time_limit, world.device)
    noise = float(world.noise.deviation) if isinstance(world, NoisyPositionOnlyPendulum) else 0.0
    observation = play("a torque of ten sines", lifter(0.0))
    if noise:
        one_step = play("a torque of ten sines and seven of their change", lifter(7.0))
    else:
        one_step = play("dynamic programming on two angles", swinger(plan, world.time_limit))
    perfect = play("dynamic programming on a filter", swimmer(plan, world.time_limit, noise))
    return lined(observation, observation, one_step, perfect, MOST)


def lifter(change: float) -> Player:
    """Push up with ten times the sine that is seen, and brake its change."""
    before: Tensor | None = None  # (N, 1)

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal before
        sine = observation[:, 1:]
        before, last = sine, sine if before is None else before
        return (change * (last - sine) - 10 * sine).clamp(-TORQUE, TORQUE)

    return act


def seen_angle(observation: Tensor) -> Tensor:
    """Return the angle (N,) of a cosine and a sine (N, 2)."""
    return torch.atan2(observation[:, 1].double(), observation[:, 0].double())


def swinger(plan: SwingUp, steps: int) -> Player:
    """Take the angle's last change for the speed."""
    before: Tensor | None = None

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal before
        angle = seen_angle(observation)
        turned = torch.zeros_like(angle) if before is None else angle - before
        speed = (turned - 2 * math.pi * (turned / (2 * math.pi)).round()) / TICK
        before = angle
        return plan.best(torch.stack([angle, speed.clip(-SPEED, SPEED)], 1), steps).float()[:, None]

    return act


def swimmer(plan: SwingUp, steps: int, noise: float) -> Player:
    """Filter angle and speed, and take the best torque for their means."""
    known: Filter | None = None
    torque = torch.empty(0)
    left = steps + 1

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal known, torque, left
        angle, left = seen_angle(observation), left - 1
        if known is None:
            start = torch.tensor([noise**2 + 1e-12, 1 / 3], dtype=torch.float64, device=angle.device)
            known = Filter(swing, torch.stack([angle, 0 * angle], 1), start)
        else:
            known.move(torque)
            for number in (0, 1):
                cosine, sine = known.means[:, 0].cos(), known.means[:, 0].sin()
                known.see(0, observation[:, number], *((cosine, -sine) if number == 0 else (sine, cosine)), noise, 1.0)
        torque = plan.best(known.means, left)
        return torque.float()[:, None]

    return act
