"""Names that this version has changed, so that what an earlier one wrote can be read for ever.

A TOML file, a recorded config and a checkpoint's config say `schema = 2`; those that do not are of schema 1 and pass
through `migrate`. Whoever renames a setting adds one line to migration.toml, and so does whoever drops one.
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envs.errors import UserError, require

SCHEMA = 2
Keys = tuple[str, ...]

with Path(__file__).with_suffix(".toml").open("rb") as file:
    _TABLES: dict[str, dict[str, Any]] = tomllib.load(file)
_SHARED = _TABLES["paths"].pop("all")
KINDS: dict[str, str] = _TABLES["kinds"]
PATHS: dict[str, dict[str, str]] = {kind: _SHARED | paths for kind, paths in _TABLES["paths"].items()}
VALUES: dict[str, dict[Any, Any]] = _TABLES["values"]
BACKENDS: dict[str, str] = VALUES["compute.backend"]  # of Mamba
METRICS: dict[str, str] = _TABLES["metrics"]
DROPPED: dict[str, Any] = _TABLES["dropped"]


def migrate(kind: str, tree: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Give a config's tree of TOML values the names of this schema, without the key `schema`.

    Args:
        kind: the trainer whose config it is, such as "q_network".
        tree: nested tables; it may be a part of a config, and names that did not change may stand in it.
        source: what the tree was read from, for messages.

    Raises:
        UserError: the schema is unknown, or a setting is given under its old and its new name.
    """
    schema = tree.get("schema", 1)
    found = {key: value for key, value in tree.items() if key != "schema" and DROPPED.get(key) != value}
    if schema == SCHEMA:
        return found
    require(schema == 1, f"{source}: schema {schema!r} is not known here; this version reads 1 and {SCHEMA}")
    migrated: dict[str, Any] = {}
    for path, value in leaves(found):
        put(migrated, new_path(kind, path), new_value(kind, path, value), source)
    return migrated


def new_path(kind: str, path: Keys) -> Keys:
    """Where a setting of schema 1 stands now."""
    table = PATHS.get(kind, {})
    for length in range(len(path), 0, -1):  # a setting's own line comes before that of its table
        if (new := table.get(".".join(path[:length]))) is not None:
            return (*new.split("."), *path[length:])
    return path


def new_value(kind: str, path: Keys, value: Any) -> Any:
    """Translate a setting's value of schema 1."""
    names = VALUES.get(".".join(path), {}) if kind in PATHS else {}
    return names.get(value, value) if isinstance(value, str | bool | int | float) else value


def new_metric(name: str) -> str:
    """Translate the name of a metric."""
    for old, new in METRICS.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def migrate_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the keys of a trainer's saved state."""
    new = {_TABLES["state"].get(key, key): value for key, value in state.items()}
    if isinstance(new.get("optimizers"), dict):  # schema 1 had one without a list around it
        new["optimizers"] = [new["optimizers"]]
    if "explorer" in new:
        new["explorer"] = {_TABLES["explorer"].get(key, key): value for key, value in new["explorer"].items()}
    return new


def leaves(tree: Mapping[str, Any], prefix: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Yield each setting of nested tables with its path; an empty table is a value."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*prefix, key))
        else:
            yield (*prefix, key), value


def put(tree: dict[str, Any], path: Keys, value: Any, source: str = "") -> None:
    """Set a value in nested tables; a UserError, which names `source`, where there is one already."""
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    if path[-1] in tree:
        raise UserError(f"{source}: {'.'.join(path)} is given twice, under its old name and its new one")
    tree[path[-1]] = value
