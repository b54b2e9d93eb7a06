"""One look for every series, the same in all reports."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from dqn_memory.analysis.plots import COLOURS
from dqn_memory.network import ARCHITECTURES

# Seven colours, so that the paper's twelve recurrent and feed-forward rows that stand beside each other differ; the
# eighth of the palette is too near to the second.
PALETTE = COLOURS[:7]
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)))
MARKERS = ("o", "s", "^", "D")
MARKS = 12  # of a line with many points, which has a marker now and then


class Look(NamedTuple):
    """How a series is drawn."""

    colour: str
    dash: Any
    marker: str

    @property
    def line(self) -> dict[str, Any]:
        """Keywords of a line."""
        return {"color": self.colour, "linestyle": self.dash}

    def marked(self, points: int) -> dict[str, Any]:
        """Keywords of a line through so many points, with its markers."""
        return {**self.line, "marker": self.marker, "markevery": -(-points // MARKS) or 1}


LOOKS = tuple(Look(colour, dash, marker) for dash, marker in zip(DASHES, MARKERS, strict=True) for colour in PALETTE)

# What shipped studies compare besides architectures: a table for each family of names, a row a dash, a place in the row
# a colour.
PRIORS = (
    ("causal", "local", "adaptive", "gaussian", "gaussian_adaptive", "recurrent", "gru"),
    ("", "", "adaptive_hard", "", "gaussian_adaptive_hard"),
    ("", "", "adaptive_gate", "gaussian_gate", "gaussian_adaptive_gate"),
    ("", "", "adaptive_ramp_gate"),
)
RELEASED = ((), (), (), tuple(f"{name}, released" if name else "" for name in PRIORS[0][:5]))
STARTS = (
    ("span 2", "span 6", "span 10", "mu 2", "mu 6", "mu 10"),
    (),
    ("", "", "", "mu 2, sigma 3", "mu 6, sigma 3", "mu 10, sigma 3"),
)
WINDOWS = tuple(
    ("", f"local {window}", "", *(f"gaussian mu {mu} sigma {sigma}" for mu in (2, 6, 10, 12)))
    for window, sigma in ((2, 1), (6, 2), (10, 3), (12, 4))
)
PENALTIES = (("none", "l1", "l2", "max", "max-norm 6", "max-norm 4"),)
MODULES = (("storm", "lmamba", "double_transformer", "double_mamba", "glam"), ("", "", "", "", "glam_no_variation"))
FAMILIES: tuple[tuple[tuple[str, ...], ...], ...] = (PRIORS, RELEASED, STARTS, WINDOWS, PENALTIES, MODULES)

FIXED: dict[str, Look] = {
    name: LOOKS[row * len(PALETTE) + place]
    for family in FAMILIES
    for row, names in enumerate(family)
    for place, name in enumerate(names)
    if name
}
# Names of the papers, and other names of the same thing.
SAME = {
    "dtqn": "dtqn4", "mu 2, sigma 1": "mu 2", "mu 6, sigma 1": "mu 6", "mu 10, sigma 1": "mu 10",
    "sigma 3": "mu 6, sigma 3", "w/o G&L": "storm", "w/o G": "lmamba", "Dbl. Transformer": "double_transformer",
    "Dbl. Mamba": "double_mamba", "GLAM": "glam", "w/o variation loss": "glam_no_variation", "max penalty": "max",
}  # fmt: skip


def looks(series: Sequence[str]) -> dict[str, Look]:
    """A look for each series, the same in every study for all names that shipped studies use.

    A variant ("dgfqn as published") has its architecture's colour with another dash. Other names take what is free, in
    the order of the study's file, and from the beginning again where all is taken; so does a name whose own look
    another one has, architectures first.
    """
    found: dict[str, Look] = {}
    for name in sorted(series, key=_architecture, reverse=True):
        own = _own(name)
        if own is not None and own not in found.values():
            found[name] = own
    for name in series:
        found.setdefault(name, _free(name, found.values()))
    return found


def _architecture(name: str) -> bool:
    return _base(name) in ARCHITECTURES


def _base(name: str) -> str:
    """What a name begins with, up to the first space or comma, by the registry's name."""
    word = name.partition(" ")[0].rstrip(",")
    return SAME.get(word, word)


def _own(name: str) -> Look | None:
    """The look that is always this name's, if it has one."""
    name, base = SAME.get(name, name), _base(name)
    if base not in ARCHITECTURES:
        return FIXED.get(name)
    place = list(ARCHITECTURES).index(base)
    variant = 0 if name == base else len(PALETTE)  # the next dash, and the same colour
    return LOOKS[(place + variant) % len(LOOKS)]


def _free(name: str, taken: Collection[Look]) -> Look:
    """A look that is not taken: first of a variant's own colour, then of colours that nothing has."""
    free = [look for look in LOOKS if look not in taken]
    if not free:
        return LOOKS[len(taken) % len(LOOKS)]
    base = _own(_base(name))
    colours = {look.colour for look in taken}
    return min(free, key=lambda look: (base is None or look.colour != base.colour, look.colour in colours))
