"""Define the parts of every trainer's config: the environment, the output and the computation."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple
from zlib import crc32

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import Bounds, OneOrSeveral, check_numbers
from dqn_memory.runs.trackers import check_trackers
from envs.console import say
from envs.registry import WORLDS

if TYPE_CHECKING:  # scripts that compute nothing, such as the runner of studies, do not load torch
    import torch

    from envs.actions import Form, InterfaceConfig

Engine = Literal["eager", "compile", "cudagraph"]
EngineSetting = Literal["auto", "eager", "compile", "cudagraph"]
MAX_NAME = 100  # letters of a folder's name that is made of ids
PLACE = "computed_on"  # device and engine in environment.json
WHY = {  # by the engine on a CUDA device (results/benchmarks/gpu)
    "cudagraph": "a captured graph is several times as fast as eager CUDA",
    None: "no CUDA graph can hold this environment, and eager CUDA pays for large networks only, by --device cuda",
}


@dataclass(frozen=True)
class EnvironmentConfig:
    """The environment, and how many copies of it run."""

    env: OneOrSeveral = "Gridverse/Memory-5x5-v0"
    """An environment of this suite, or any Gymnasium id; repeat the flag for several, ID=0.5 for half of the copies."""
    num_envs: Annotated[int, Bounds(1)] = 16
    """Parallel copies N of the environment; one step of all copies counts as N environment steps."""
    time_limit: Annotated[int, Bounds(1)] | None = None
    """Steps after which a training episode is truncated (None: the environment's own limit)."""
    path: str | None = None
    """File that defines the environment, if the environment is read from a file."""
    observation_key: str | None = None
    """Entry of a dictionary observation that the agent sees (None: all; if one cannot be read, the only Box)."""
    observe: Literal["observation", "state"] = "observation"
    """`state` shows the hidden state instead of the observation (environments of this suite)."""
    stack: Annotated[int, Bounds(1)] = 1
    """Newest observations, such as frames, that the agent sees at once (Gymnasium environments)."""
    image_axes: Literal["auto", "chw", "hwc"] = "auto"
    """Order of the axes of images: channels first or last (auto: by their sizes)."""
    # The results do not depend on it. Processes pay if a step of all copies takes milliseconds: a message costs about
    # 0.2 ms. The metric time/processor leaves their time out.
    env_workers: Annotated[int, Bounds(1)] | None = None
    """Processes that step the copies of each Gymnasium environment (None: no further process)."""

    actions: Literal["auto", "numbered", "clip", "tanh"] = "auto"
    """`numbered`: number all combinations; `clip`, `tanh`: draw each part, bound real ones so (auto: by script)."""

    action_masks: bool | None = None
    """Obey masks of actions (None: a new run obeys them if the environment has them)."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The environments as they were named, with their shares."""
        return (self.env,) if isinstance(self.env, str) else self.env

    @property
    def shares(self) -> dict[str, float | None]:
        """The share of the copies that each environment asks for, by id; None: an even part of the rest."""
        if not self.texts:
            raise UserError("--env names no environment; give an id")
        shares: dict[str, float | None] = {}
        for text in self.texts:
            id, equals, share = text.partition("=")
            shares[id] = float(share) if is_finite_text(share) else None
            if equals and not is_finite_text(share):
                raise UserError(f"--env {text}: {share!r} is no share of the copies; write {id}=0.5")
        return shares

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all environments of training."""
        return tuple(self.shares)

    @property
    def id(self) -> str:
        """The id of the environment, of several of the first."""
        return self.ids[0]

    @property
    def name(self) -> str:
        """The ids in one text."""
        return " + ".join(self.ids)

    @property
    def title(self) -> str:
        """The ids in a short text."""
        return self.name if len(self.ids) < 3 else f"{self.id} and {len(self.ids) - 1} others"

    @property
    def folder(self) -> str:
        """The ids in a text for a folder's name; a digest stands for names that would be too long."""
        name = "+".join(self.ids)
        return name if len(name) <= MAX_NAME else f"{self.id}+{len(self.ids) - 1}-{crc32(name.encode()):08x}"

    @property
    def is_ours(self) -> bool:
        """Whether the first environment is one of this suite."""
        return self.id.removeprefix("envs:") in WORLDS

    def each(self) -> tuple[EnvironmentConfig, ...]:
        """Give the config of each environment, with its number of copies; their sum is `num_envs`."""
        given = self.shares
        rest = max(0.0, 1 - sum(share or 0.0 for share in given.values()))
        even = rest / max(1, sum(share is None for share in given.values()))
        exact = [self.num_envs * (even if share is None else share) for share in given.values()]
        rows = [math.floor(number + 1e-9) for number in exact]
        by_rest = sorted(range(len(rows)), key=lambda place: rows[place] - exact[place])  # the largest rest first
        for place in by_rest[: self.num_envs - sum(rows)]:
            rows[place] += 1
        return tuple(replace(self, env=id, num_envs=count) for id, count in zip(given, rows, strict=True))

    def other(self, id: str) -> EnvironmentConfig:
        """Give the config of another environment with the same observations and actions."""
        if "=" in id and is_finite_text(id.rpartition("=")[2]):
            raise UserError(f"{id}: only environments of training have a share; name {id.partition('=')[0]}")
        return replace(self, env=id, path=None, env_workers=None)

    def check(self) -> None:
        """Refuse environments named twice, shares that do not add up, and environments without a copy."""
        texts, shares = self.texts, self.shares
        if len({id.removeprefix("envs:") for id in shares}) < len(texts):
            raise UserError(f"--env names an environment twice among {', '.join(texts)}; name each once")
        given = [share for share in shares.values() if share is not None]
        total, free = sum(given), len(shares) - len(given)
        if any(not 0 < share <= 1 for share in given) or (total >= 1 if free else abs(total - 1) > 1e-6):
            wanted = f"leave a part for the other {free}" if free else "add up to 1"
            raise UserError(f"--env {' '.join(texts)}: the shares must be above 0 and {wanted}")
        empty = [each.id for each in self.each() if each.num_envs == 0]
        if empty:
            raise UserError(f"--num-envs {self.num_envs} leaves no copy for {empty[0]}; raise it or its share")

    @property
    def obeys_masks(self) -> bool:
        """Whether agents obey masks of actions; `completed` has settled it for every new run."""
        return bool(self.action_masks)

    @property
    def action_form(self) -> Form:
        """How agents give actions; a run that says `auto` numbers them."""
        return "numbered" if self.actions == "auto" else self.actions

    @property
    def interface(self) -> InterfaceConfig:
        """What agents read, and how they give actions."""
        from envs.actions import InterfaceConfig

        return InterfaceConfig(self.observation_key, self.action_form, self.obeys_masks)

    def in_parts(self) -> EnvironmentConfig:
        """Replace `auto` by `clip` if the action space is not Discrete."""
        from envs.packages import make_env
        from envs.registry import make_world

        if self.actions != "auto" or self.id.startswith("ALE/"):
            return self
        ours = self.is_ours
        made: Any = (make_world if ours else make_env)(
            self.id.removeprefix("envs:") if ours else self.id, **self.kwargs()
        )
        single = type(made.action_space).__name__ == "Discrete"
        if not ours:
            made.close()
        return self if single else replace(self, actions="clip")

    def completed(self, reads_rows: bool, others: Sequence[str] = ()) -> EnvironmentConfig:
        """Find out by a copy of the environment whether it masks actions, and which entry of its observation is read.

        Of a dictionary that cannot be read as a whole the only Box is chosen, and the choice is printed.

        Raises:
            UserError: several environments, `others` of evaluations among them, do not agree.
        """
        environments = *self.each(), *map(self.other, others)
        settled = {each.id: each._settled(reads_rows) for each in environments}
        (first, (masks, key)), *rest = settled.items()
        for id, (other_masks, other_key) in rest:
            if key != other_key:
                seen = [f"the entry {name!r}" if name else "all" for name in (key, other_key)]
                raise UserError(
                    f"{first} and {id} cannot be mixed: the agent sees {seen[0]} of the first's observation, {seen[1]} "
                    "of the second's; name environments with equal observations"
                )
            masks = other_masks if masks is None else masks
            if other_masks not in (None, masks):
                raise UserError(
                    f"{first} and {id} cannot be mixed: only one of them masks actions; --action-masks False ignores it"
                )
        for each in environments:
            module, _, name = each.id.rpartition(":")
            if not each.is_ours and name in WORLDS:
                say(
                    f"{each.id} steps one copy after another, as Gymnasium does; "
                    f"--plugin {module} --env {name} steps all at once",
                    file=sys.stderr,
                )
        if key != self.observation_key:
            say(f"{first} shows a dictionary; the agent sees its entry {key!r} (--observation-key)", file=sys.stderr)
        return replace(self, observation_key=key, action_masks=masks)

    def _settled(self, reads_rows: bool) -> tuple[bool | None, str | None]:
        """Tell whether a single environment masks actions, and the key of the entry that the agent sees.

        The first is None for an environment of this suite, whose form tells it, and in Atari.
        """
        from envs.checked import Checked
        from envs.packages import make_env
        from envs.rows import has_masks, is_readable
        from envs.spaces import only_box

        if self.id.startswith("ALE/") or self.is_ours:
            return self.action_masks, self.observation_key
        with closing(make_env(self.id, **self.kwargs(training=False))) as env:
            masks, key = self.action_masks, self.observation_key
            if masks is None:
                masks = reads_rows and has_masks(Checked(env, key))
            if key is None and not (reads_rows and is_readable(env.observation_space)):
                key = only_box(env.observation_space)
        return masks, key

    def kwargs(self, training: bool = True) -> dict[str, Any]:
        """Give the keyword arguments of the environment's constructor.

        Raises:
            UserError: the environment does not support a setting.
        """
        ours = self.is_ours
        if self.env_workers is not None and (ours or self.id.startswith("ALE/")):
            how = "all copies at once, as tensors" if ours else "its copies in threads of its own"
            raise UserError(f"--env-workers {self.env_workers}: {self.id} steps {how}; leave the flag out")
        if self.stack > 1 and (ours or self.id.startswith("ALE/")):
            advice = "--architecture frame_stack gives a network the last four observations"
            raise UserError(f"--stack {self.stack} is for Gymnasium's environments, which {self.id} is not; {advice}")
        if self.image_axes != "auto" and (ours or self.id.startswith("ALE/")):
            raise UserError(f"--image-axes {self.image_axes}: the axes of {self.id} are known; leave the flag out")
        if self.image_axes != "auto" and self.stack > 1:
            raise UserError(f"--image-axes {self.image_axes} is for single images; leave out --stack {self.stack}")
        if self.observe == "state" and not ours:
            raise UserError(
                f"--observe state needs an environment of this suite, which {self.id} is not; use --observe observation"
            )
        limit = "time_limit" if ours else "max_episode_steps"  # the keyword of gymnasium.make
        kept = training or (self.time_limit is not None and not ours and self._endless())
        given = {limit: self.time_limit if kept else None, "path": self.path}
        if self.id.startswith("ALE/"):
            from envs.atari import AtariConfig

            frames = AtariConfig().frame_skip * (given.pop(limit) or 0)
            given["most_frames"] = frames or None
        given |= {"observe": self.observe if self.observe == "state" else None}
        given |= {"stack": self.stack if self.stack > 1 else None}
        given |= {"image_axes": None if self.image_axes == "auto" else self.image_axes}
        return {name: value for name, value in given.items() if value is not None}

    def _endless(self) -> bool:
        """Tell whether Gymnasium knows the environment without a limit of its episodes."""
        import gymnasium

        spec = gymnasium.registry.get(self.id.rpartition(":")[2])
        return spec is not None and spec.max_episode_steps is None


@dataclass(frozen=True)
class OutputConfig:
    """The run folder, its log and its checkpoints."""

    run: str | None = None
    """Run folder (None: runs/ENV/VARIANT/seed_SEED); it must not hold a run yet."""
    log_every: Annotated[int, Bounds(0)] = 2_000
    """Environment steps between log lines (0: none)."""
    track: tuple[str, ...] = ("tensorboard",)
    """Trackers of the log lines: tensorboard, csv, wandb, those of a --plugin; or none."""
    histograms: bool = False
    """At log lines, write histograms of all trained parameters and their newest gradients for TensorBoard."""
    checkpoint_every: Annotated[int, Bounds(0)] = 50_000
    """Environment steps between checkpoints (0: only at the end)."""
    checkpoint_replay: Literal["full", "none"] = "full"
    """`none` leaves the replay out of checkpoints, if there is one; a resumed run is then not exact."""
    max_repeated_actions: Annotated[int, Bounds(0)] | None = 1_000_000
    """Max Gymnasium actions that a resume repeats; above it a checkpoint starts new episodes (None: no limit)."""

    def check(self) -> None:
        """Refuse missing trackers, histograms that nothing shows, and a folder without a name."""
        if self.run is not None and (not self.run or "\0" in self.run):
            raise UserError(f"--run {self.run!r} names no folder; leave it out for one below runs")
        check_trackers(self.track, self.histograms)


@dataclass(frozen=True)
class ComputeConfig:
    """Device, threads and engine of the computation."""

    device: str = "auto"
    """cpu, cuda, cuda:1 ... (auto: cuda if there is one on which this run is faster; a line says so)."""
    threads: Annotated[int, Bounds(1, 1_024)] | None = None
    """CPU threads of torch (None: torch's own choice)."""
    engine: EngineSetting = "auto"
    """How networks are executed; all engines compute the same function (auto: cudagraph on CUDA if possible)."""

    def start(self) -> torch.device:
        """Set the number of threads and the precision of products, on which float sums depend; give the device."""
        import torch

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        set_tf32(getattr(self, "tf32", False))
        return self.torch_device()

    def check(self) -> None:
        """Refuse a device or an engine that this machine does not have."""
        check_numbers(self)
        device = self.torch_device()
        if self.engine == "cudagraph" and device.type != "cuda":
            raise UserError("--engine cudagraph needs --device cuda; use another engine on a CPU")
        compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")  # as torch chooses it
        if self.engine == "compile" and sys.platform != "win32" and shutil.which(compiler) is None:
            raise UserError(
                f"--engine compile needs a C++ compiler, and there is no {compiler} here; use --engine eager"
            )

    def torch_device(self) -> torch.device:
        """Give the device; a UserError says why it cannot be used."""
        import torch

        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
        except RuntimeError as error:
            raise UserError(f"--device {self.device} is not a device of torch; use cpu, cuda or auto") from error
        if device.type == "cuda" and not torch.cuda.is_available():
            raise UserError(f"--device {self.device}: torch sees no CUDA device here; use cpu")
        try:
            torch.Generator(device)  # every trainer makes one on its device
        except RuntimeError:
            raise UserError(f"--device {self.device} cannot be used here; use cpu, cuda or auto") from None
        return device


def is_finite_text(text: str) -> bool:
    """Tell whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


class Placement(NamedTuple):
    """Where and how a run computes."""

    device: str
    engine: Engine
    why: str

    @property
    def facts(self) -> dict[str, str]:
        """Give the kind of device and the engine as a fact of environment.json."""
        return {PLACE: f"{self.device.partition(':')[0]} by the engine {self.engine}"}

    def log(self, began: str | None = None) -> None:
        """Print the choice, and a warning if a resumed run `began` elsewhere, to standard error."""
        here = self.facts[PLACE]
        if self.why:
            say(f"the run computes on {here} ({self.why})", file=sys.stderr)
        if began not in (None, here):
            say(f"the run began on {began}: the continued run is not exact", file=sys.stderr)


def place(device: str, engine: EngineSetting, cuda: bool, fastest: Engine | None) -> Placement:
    """Choose a run's device and engine where they are `auto`.

    The choice does not depend on the memory: every memory can be captured (tests/core/test_device_steps.py).

    Args:
        device: the setting.
        engine: the setting.
        cuda: whether torch sees a CUDA device.
        fastest: the engine that makes this run faster on CUDA than on a CPU; None if none does.
    """
    why = ""
    if device == "auto" and not cuda:
        device, why = "cpu", "torch sees no CUDA device"
    elif device == "auto":
        chosen = fastest if engine == "auto" else engine
        device, why = "cpu" if chosen is None else "cuda", WHY.get(chosen, "torch sees a CUDA device")
    if engine == "auto":
        engine = fastest or "eager" if device.startswith("cuda") else "eager"
    return Placement(device, engine, why)


def set_tf32(allowed: bool) -> None:
    """Let an accelerator round float32 factors to TF32's 10 bits of mantissa, or not; no effect on a CPU.

    torch's default rounds in cuDNN's convolutions and recurrent layers, but not in matrix products. Here all of them
    round, or none does.
    """
    import torch

    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed
