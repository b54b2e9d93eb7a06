"""The ids of POPGym's tasks: the class of each, and the keywords that make its level."""

from typing import Any

LEVELS: dict[str, tuple[str, dict[str, Any]]] = {
    # RepeatFirst: the delay is the episode's length
    "POPGym/RepeatFirst-Easy-v0": ("envs.popgym.repeat:RepeatFirst", {"decks": 1}),
    "POPGym/RepeatFirst-Medium-v0": ("envs.popgym.repeat:RepeatFirst", {"decks": 8}),
    "POPGym/RepeatFirst-Hard-v0": ("envs.popgym.repeat:RepeatFirst", {"decks": 16}),
    # RepeatPrevious: the answer is the k-th newest card
    "POPGym/RepeatPrevious-Easy-v0": ("envs.popgym.repeat:RepeatPrevious", {"decks": 1, "k": 4}),
    "POPGym/RepeatPrevious-Medium-v0": ("envs.popgym.repeat:RepeatPrevious", {"decks": 2, "k": 32}),
    "POPGym/RepeatPrevious-Hard-v0": ("envs.popgym.repeat:RepeatPrevious", {"decks": 3, "k": 64}),
    # Autoencode: all cards are remembered
    "POPGym/Autoencode-Easy-v0": ("envs.popgym.repeat:Autoencode", {"decks": 1}),
    "POPGym/Autoencode-Medium-v0": ("envs.popgym.repeat:Autoencode", {"decks": 2}),
    "POPGym/Autoencode-Hard-v0": ("envs.popgym.repeat:Autoencode", {"decks": 3}),
    # CountRecall: colours, suits and ranks are counted
    "POPGym/CountRecall-Easy-v0": ("envs.popgym.counting:CountRecall", {"decks": 1, "categories": 2}),
    "POPGym/CountRecall-Medium-v0": ("envs.popgym.counting:CountRecall", {"decks": 2, "categories": 4}),
    "POPGym/CountRecall-Hard-v0": ("envs.popgym.counting:CountRecall", {"decks": 4, "categories": 13}),
    # HigherLower: more decks make single cards tell less
    "POPGym/HigherLower-Easy-v0": ("envs.popgym.counting:HigherLower", {"decks": 1}),
    "POPGym/HigherLower-Medium-v0": ("envs.popgym.counting:HigherLower", {"decks": 2}),
    "POPGym/HigherLower-Hard-v0": ("envs.popgym.counting:HigherLower", {"decks": 3}),
    # MultiarmedBandit: the episode's length grows with the arms
    "POPGym/MultiarmedBandit-Easy-v0": ("envs.popgym.bandit:MultiarmedBandit", {"arms": 10, "time_limit": 200}),
    "POPGym/MultiarmedBandit-Medium-v0": ("envs.popgym.bandit:MultiarmedBandit", {"arms": 20, "time_limit": 400}),
    "POPGym/MultiarmedBandit-Hard-v0": ("envs.popgym.bandit:MultiarmedBandit", {"arms": 30, "time_limit": 600}),
    # Concentration: two colours, then thirteen ranks
    "POPGym/Concentration-Easy-v0": ("envs.popgym.concentration:Concentration", {"cards": 52, "categories": 2}),
    "POPGym/Concentration-Medium-v0": ("envs.popgym.concentration:Concentration", {"cards": 104, "categories": 2}),
    "POPGym/Concentration-Hard-v0": ("envs.popgym.concentration:Concentration", {"cards": 52, "categories": 13}),
}
