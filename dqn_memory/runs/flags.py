"""Command-line flags of a tree of dataclasses: short names, complete help.

A field's flag is its own name where no other field of the tree has it, else it takes the name of the
field that holds it in front. A nested field called `kind` is named after its holder: `prior.kind` is
`--prior`. tyro gets a copy of the tree whose fields carry these names and their documentation.
"""

import ast
import inspect
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import field, is_dataclass, make_dataclass, replace
from textwrap import dedent
from typing import Annotated, Any, TypeVar, get_args, get_origin

import tyro

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.toml import field_types, members

C = TypeVar("C")
Keys = tuple[str, ...]
Repeatable = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
CONFIG_HELP = "a shipped preset's name or a TOML file; repeatable, the later one wins"


def flag_names(config: Any) -> dict[str, str]:
    """Flag of every settable field of a config instance: {"network.prior.mu": "mu", ...}.

    Raises TypeError (a mistake of the config's author) where two fields would share a flag.
    """
    return {".".join(path): flag for path, flag in _flags(config).items()}


def parse_flags(default: C, argv: list[str], description: str, prog: str | None = None) -> C:
    """Give `default` with the flags in `argv` laid over it; tyro prints --help and its own errors."""
    mirror = _mirror(default, _flags(default), ())
    config_field = (
        "config",
        Annotated[Repeatable, tyro.conf.arg(help=CONFIG_HELP, metavar="NAME|PATH")],
        field(default=()),
    )
    extra = [] if "config" in field_types(type(default)) else [config_field]
    top = make_dataclass(type(mirror).__name__, extra, bases=(type(mirror),), frozen=True)
    parsed: Any = tyro.cli(top, args=argv, prog=prog, description=description, config=(tyro.conf.OmitArgPrefixes,))
    return _rebuild(default, parsed)


def field_docs(config_class: type) -> dict[str, str]:
    """What each field's author wrote: the string below it, or the comment behind or above it."""
    docs: dict[str, str] = {}
    for owner in reversed(config_class.__mro__):
        if is_dataclass(owner):
            docs |= _written_docs(owner)
    return docs


def _settable(annotation: Any) -> bool:
    """Tables inside arrays, and tables that may be absent, are for config files only."""
    inner = [arg for option in members(annotation) for arg in (option, *get_args(option))]
    return not any(is_dataclass(option) for option in inner)


def _leaves(config: Any, prefix: Keys) -> Iterator[Keys]:
    for name, annotation in field_types(type(config)).items():
        if is_dataclass(value := getattr(config, name)):
            yield from _leaves(value, (*prefix, name))
        elif _settable(annotation):
            yield (*prefix, name)


def _flags(config: Any) -> dict[Keys, str]:
    # a nested `kind` is told by its holder, so its last word says nothing
    spoken = {path: path[:-1] if len(path) > 1 and path[-1] == "kind" else path for path in _leaves(config, ())}
    tails = Counter(name[-n:] for name in spoken.values() for n in range(1, len(name) + 1))
    flags = {path: "_".join(_shortest(name, tails)) for path, name in spoken.items()}
    twice = [flag for flag, count in Counter(flags.values()).items() if count > 1]
    if twice:
        raise TypeError(f"{type(config).__name__}: several fields share the flag --{twice[0].replace('_', '-')}")
    return flags


def _shortest(name: Keys, tails: Counter[Keys]) -> Keys:
    return next((name[-n:] for n in range(1, len(name)) if tails[name[-n:]] == 1), name)


def _mirror(config: Any, flags: dict[Keys, str], prefix: Keys) -> Any:
    docs = field_docs(type(config))
    entries: list[Any] = []
    for name, annotation in field_types(type(config)).items():
        value, path = getattr(config, name), (*prefix, name)
        if is_dataclass(value):
            nested = _mirror(value, flags, path)
            entries.append((name, type(nested), field(default=nested)))
        elif path in flags:
            entries.append((name, *_leaf(annotation, value, flags[path], docs.get(name, ""))))
    return make_dataclass(type(config).__name__, entries, frozen=True)()


def _leaf(annotation: Any, value: Any, flag: str, doc: str) -> tuple[Any, Any]:
    if _is_dict(annotation):  # key=value pairs, laid over the entries that are there
        pairs = ", ".join(f"{key}={item}" for key, item in value.items())
        doc = f"{doc} (KEY=VALUE, repeatable{'; now ' + pairs if pairs else ''})".strip()
        return Annotated[Repeatable, tyro.conf.arg(name=flag, help=doc, metavar="KEY=VALUE")], field(default=())
    return Annotated[annotation, tyro.conf.arg(name=flag, help=doc or None)], field(default=value)


def _is_dict(annotation: Any) -> bool:
    return any(get_origin(option) is dict for option in members(annotation))


def _rebuild(config: Any, parsed: Any) -> Any:
    values: dict[str, Any] = {}
    for name, annotation in field_types(type(config)).items():
        if not hasattr(parsed, name):
            continue
        old, new = getattr(config, name), getattr(parsed, name)
        if is_dataclass(old):
            new = _rebuild(old, new)
        elif _is_dict(annotation):
            new = {**old, **dict(_pair(name, text) for text in new)}
        values[name] = new
    return replace(config, **values)


def _pair(name: str, text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"--{name.replace('_', '-')} takes KEY=VALUE, not '{text}'")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value  # a bare word is a string


def _written_docs(owner: type) -> dict[str, str]:
    try:
        source = dedent(inspect.getsource(owner))
        body = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):  # made at run time: nothing was written
        return {}
    docs: dict[str, str] = {}
    statements = body.body if isinstance(body, ast.ClassDef) else []
    for statement, following in zip(statements, [*statements[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            docs[statement.target.id] = _string(following) or _comment(source.splitlines(), statement)
    listed = _listed(inspect.cleandoc(owner.__doc__ or ""))
    return {name: doc or listed.get(name, "") for name, doc in docs.items()}


def _string(statement: ast.stmt | None) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return " ".join(str(statement.value.value).split())
    return ""


def _comment(lines: list[str], statement: ast.AnnAssign) -> str:
    last = lines[(statement.end_lineno or 1) - 1].encode()[statement.end_col_offset or 0 :].decode()
    if "#" in last:
        return last.partition("#")[2].strip()
    above: list[str] = []
    for line in reversed(lines[: statement.lineno - 1]):
        if not line.lstrip().startswith("#"):
            break
        above.insert(0, line.strip().lstrip("# "))
    return " ".join(above)


def _listed(docstring: str) -> dict[str, str]:
    """Entries `name: text` of a class docstring's list of attributes."""
    return {found[1]: found[2] for found in re.finditer(r"^\s*(\w+):[ \t]+(\S.*)$", docstring, re.MULTILINE)}
