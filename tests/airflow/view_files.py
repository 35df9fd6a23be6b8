"""View files beside the fruit collection's, and the DAG file that makes DAGs of them."""

from __future__ import annotations

from persist_core.config.view import ViewConfig, load_view
from tests.airflow.fruit import Fruit

DAG_MODULE = "views_dag"
_DAG_FILE = """
# airflow DAG
from pathlib import Path
from persist_airflow.factory import build_view_dags
globals().update(build_view_dags(Path(__file__).parent / "views"))
"""


class Views:
    """A folder of view files."""

    def __init__(self, fruit: Fruit) -> None:
        self.folder = fruit.dags / "views"
        self.folder.mkdir()
        (fruit.dags / f"{DAG_MODULE}.py").write_text(_DAG_FILE)

    def write(self, name: str, text: str) -> ViewConfig:
        """`views/<name>.yaml`, loaded."""
        path = self.folder / f"{name}.yaml"
        path.write_text(text)
        return load_view(path)
