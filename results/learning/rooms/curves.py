"""Draw `curves.png` from `curves.csv`: `python results/learning/rooms/curves.py`."""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import mean

from matplotlib import pyplot as plt

FOLDER = Path(__file__).parent
ROOMS = {f"{rooms}Rooms-13x13" for rooms in ("Four", "Nine", "Sixteen", "TwentyFive")}
SHOWN = {
    "a": "a: width 128",
    "d": "d: width 128, 128 environments",
    "f": "f: entropy 0.01",
    "g": "g: from f, discount 0.998",
    "h": "h: sees its last action",
    "i": "i: from g, a critic that sees",
    "preset-1": "the preset, seeds 1 to 3",
    "preset-2": "",
    "preset-3": "",
}


def main() -> None:
    """Draw the mean success in mazes of 13 x 13 cells with rooms at each evaluation of the tries in the real rooms."""
    curves: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    with (FOLDER / "curves.csv").open() as file:
        for row in csv.DictReader(file):
            if row["environment"].removeprefix("Memory-").split("-", 2)[:2] in [room.split("-") for room in ROOMS]:
                curves[row["try"]][float(row["processor_seconds"])].append(float(row["success"]))
    figure, axes = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
    for name, label in SHOWN.items():
        style = {"color": "black", "linewidth": 0.8} if name.startswith("preset") else {}
        scores = [mean(each) for each in curves[name].values()]
        axes.plot(list(curves[name]), scores, label=label or None, **style)
    axes.axhline(0.95, color="black", linestyle=":", label="aimed at")
    axes.set(xlabel="processor seconds", ylabel="mean success in rooms of 13 x 13", ylim=(0, 1))
    axes.legend(fontsize=8)
    figure.savefig(FOLDER / "curves.png", dpi=100)


if __name__ == "__main__":
    main()
