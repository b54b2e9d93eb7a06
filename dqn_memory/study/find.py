"""Where a study lies, from whatever names it: its folder, its name, or the definition that study.run was given."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from dqn_memory.runs.errors import UserError
from dqn_memory.study.archive import DEFINITION, open_source
from dqn_memory.study.definition import Definition, read_definition, shipped
from dqn_memory.study.store import HOME, study_folder


def find_study(study: Path) -> Path:
    """Find the folder as `study_folder` does, or that in which study.run carries out a shipped study or a TOML file.

    A UserError where study.run has not made that folder yet.
    """
    found = study_folder(study)
    if found.is_dir() or not (found.is_file() or found.suffix == ".toml" or str(study) in shipped()):
        return found
    folder = home(kept_name(read_definition(str(study))))
    if not folder.is_dir():
        raise UserError(
            f"the study {study} was not run yet: there is no folder {folder}; `python -m dqn_memory.study.run "
            f"{shlex.quote(str(study))}` runs it, and if it was run with --folder or --smoke, give its folder instead"
        )
    return folder


def home(definition: Definition) -> Path:
    """Say where study.run puts a study that is given no folder."""
    return HOME / definition.name


def kept_name(definition: Definition) -> Definition:
    """Name a definition as the study or the archive that keeps it as DEFINITION, where one does."""
    path = Path(definition.source)
    if path.name != DEFINITION:
        return definition
    try:
        kept = open_source(path.parent)
    except UserError:  # a file of that name that lies by itself
        return definition
    name = kept.name.removesuffix("-smoke") if kept.smoke else kept.name
    return replace(definition, name=f"{name}-smoke" if definition.smoke else name)
