"""The commands with which a user goes on: `make` targets in a clone, Python modules beside an installed package."""

from __future__ import annotations

from pathlib import Path


def embedded_command(root: Path, name: str, arguments: str = "") -> str:
    """The command line for `up`, `down`, `demo` or `airflow`, in the folder `root`."""
    if is_clone(root):
        return f"make {name}" + (f" ARGS='{arguments}'" if arguments else "")
    return f"python -m persist_airflow.embedded.run {name} {arguments}".strip()


def is_clone(root: Path) -> bool:
    """True for the top folder of a clone; elsewhere the package is installed."""
    return (root / "Makefile").is_file() and (root / "persist_core").is_dir()
