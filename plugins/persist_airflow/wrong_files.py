"""A wrong collection or view file becomes an import error under its own path; the other files' DAGs stay."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from persist_airflow.compat import DAG, file_import_error
from persist_core.errors import ConfigError


def stand_ins(errors: Sequence[ConfigError], folder: Path, prefix: str) -> list[DAG]:
    """A DAG for each wrong file of `folder`, which leaves an import error under the file's path."""
    return [_WrongFile(_named_file(error, folder), str(error), prefix) for error in errors]


def _named_file(error: ConfigError, folder: Path) -> Path:
    """The file that the error's message starts with; the folder if the folder itself is wrong."""
    files = folder.iterdir() if folder.is_dir() else ()
    return next((file for file in files if str(error).startswith(f"{file}: ")), folder)


class _WrongFile(DAG):
    def __init__(self, path: Path, message: str, prefix: str) -> None:
        super().__init__(dag_id=f"{prefix}wrong_file__{re.sub(r'[^A-Za-z0-9_.-]', '_', path.name)}", schedule=None)
        self.wrong_path = path
        self.wrong_message = message

    def validate(self) -> None:
        """Called while Airflow fills its bag of DAGs."""
        file_import_error(self.wrong_path, self.wrong_message)
        raise ConfigError(self.wrong_message)
