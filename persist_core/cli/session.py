"""The common part of all commands: the options for the location and for JSON, and the session made of them."""

from __future__ import annotations

import functools
import getpass
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from persist_core.cli import output
from persist_core.errors import InvalidTime
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation, location_from
from persist_core.time_text import LAST_DAY, UTC_ZONE, parse_time, show_local, show_time


@dataclass(frozen=True)
class Session:
    client: PersistClient
    location: PersistLocation
    as_json: bool

    @property
    def no_shards(self) -> str:
        """Printed instead of an empty table of shards."""
        return f"no shards in {self.client.location.consensus.uri}"

    def time(self, text: str | None, option: str, zone: str) -> int | None:
        """The time that an option gives, in the zone of its collection. Prints what a text in other words means."""
        if text is None:
            return None
        now_ms = self.client.clock.now_ms()
        time = parse_time(text, what=option, zone=zone, now_ms=now_ms)
        try:
            is_plain = parse_time(text) == time
        except InvalidTime:
            is_plain = False
        if not is_plain:
            local = "" if zone == UTC_ZONE or time > LAST_DAY else f", {show_local(time, zone)}"
            self.say(f"{option} {text}: {show_time(time)}{local}")
        return time

    def say(self, line: str) -> None:
        """Progress: always on stderr, so that stdout holds the result alone."""
        output.print_line(line, to_stderr=True)


def with_session(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that every command has, and hand the command a `Session`."""

    @functools.wraps(command)
    def in_session(
        *, blob_uri: str | None, consensus_uri: str | None, config_file: Path | None, as_json: bool, **arguments: Any
    ) -> None:
        location = location_from(blob_uri, consensus_uri, config_file=config_file)
        with open_location(location) as opened:
            command(Session(PersistClient(opened), location, as_json), **arguments)

    return location_options(in_session)


def location_options(command: Callable[..., None]) -> Callable[..., None]:
    options = (
        click.option("--json", "as_json", is_flag=True, help="JSON on stdout: one object, or one a line."),
        click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file with the location."),
        click.option(
            "--consensus-uri",
            help="sqlite:////folder/consensus.db, postgresql://user:pw@host/db, s3://bucket/prefix, mem:name",
        ),
        click.option("--blob-uri", help="file:///folder, s3://bucket/prefix, mem:name"),
    )
    for option in options:
        command = option(command)
    return command


def this_user() -> str:
    """The user of this process and its machine. A container may run with a user id that has no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid-{os.getuid()}"
    return f"{user}@{platform.node()}"
