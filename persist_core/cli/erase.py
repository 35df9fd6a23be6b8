"""`persist erase`: forget keys, history included."""

from __future__ import annotations

import click

from persist_core.cli import output
from persist_core.cli.session import Session, this_user, with_session
from persist_core.maintenance.erase_action import erase


@click.command("erase")
@click.argument("shard")
@click.option(
    "--key",
    multiple=True,
    required=True,
    help="A key. Repeat it for each key column, in order; and again for each further key.",
)
@click.option("--reason", required=True, help="Why: it is kept with your name, and without the key.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and what is not reached.")
@click.option("--verify", is_flag=True, help="Then read every stored object. Exit code 4 if one holds a key.")
@with_session
def erase_command(session: Session, shard: str, key: tuple[str, ...], reason: str, dry_run: bool, verify: bool) -> None:
    """Remove keys from SHARD (a collection): rows, history, errors, operator state, checkpoints and garbage.

    It cannot be undone. Nothing changes for other keys, at any time. The same command goes on after a kill. It lists
    what may hold the keys and is not reached: views, forks, the source, backups.
    """
    done = erase(session.client, shard, key, by=this_user(), reason=reason, is_dry_run=dry_run, with_verify=verify)
    output.print_done(done, as_json=session.as_json)
    if not done.facts["is_clean"]:
        raise SystemExit(4)
