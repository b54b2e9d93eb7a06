"""A player of Memory Cards with a perfect memory, who follows the solved dynamic program."""

import numpy as np
import torch

from envs.baselines import cards


def memory_player(solution, pairs):
    """Forget nothing, and guess what leaves the greatest expected return."""
    memories = []
    steps = len(solution.returns) - 1

    def act(observation, running):
        nonlocal steps
        steps -= 1
        if not memories:
            memories.extend(Memory(pairs, solution) for _ in range(len(observation)))
        rows, on = observation.tolist(), running.tolist()
        chosen = [memory(row, steps) if alive else 0 for memory, row, alive in zip(memories, rows, on, strict=True)]
        return torch.tensor(chosen, device=observation.device)

    return act


class Memory:
    """One player's perfect memory, with the names of the cards."""

    def __init__(self, pairs, solution):
        self.gone, self.solution = pairs + 1, solution
        self.values = {}  # of the cards that it has seen
        self.wrong = set()  # (card, guess)

    def __call__(self, row, steps):
        """The guess at the partner of the card that lies face up, with `steps` steps to go after it."""
        current = next(card for card, value in enumerate(row) if 0 < value < self.gone)
        self.values[current] = row[current]
        seen = [card for card in self.values if row[card] != self.gone]
        pair = [card for card in seen if card != current and self.values[card] == row[current]]
        if pair:
            return pair[0]
        unseen = [card for card, value in enumerate(row) if value != self.gone and card not in self.values]
        excluded = (sum(((card, guess) in self.wrong) << bit for bit, card in enumerate(seen)) for guess in unseen)
        guess = unseen[best_guess((len(seen), tuple(excluded)), seen.index(current), steps, self.solution)]
        self.wrong.add((current, guess))
        return guess


def best_guess(table, row, steps, solution):
    """The column whose guess is worth most."""
    choices, values = cards.options(table, row), solution.returns[steps]
    worth = [
        p * values[solution.number[right]] + (1.0 - p) * (values[solution.number[wrong]] - 1.0 if p < 1.0 else 0.0)
        for p, right, wrong in zip(choices.chance, choices.right, choices.wrong, strict=True)
    ]
    return choices.column[int(np.argmax(worth))]
