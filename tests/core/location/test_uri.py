"""The printable form of a URI."""

from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist_core.errors import InvalidUri
from persist_core.location import PersistLocation, open_consensus, redact_uri
from persist_core.location.uri import place_of


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql://user:pw@host:5432/db", "postgresql://***@host:5432/db"),
        ("postgresql://user@host/db", "postgresql://***@host/db"),
        ("postgresql://u:p@ss@host/db", "postgresql://***@host/db"),
        ("postgresql://u:p/w@host/db", "postgresql://***@host/db"),
        ("postgresql://u:p?w@host/db", "postgresql://***@host/db"),
        ("postgresql://u:p#w@host/db", "postgresql://***@host/db"),
        ("postgresql://u:8/w@host/db", "postgresql://***@host/db"),
        ("postgresql://u:8@a/b@host/db?password=x", "postgresql://***@host/db?password=***"),
        ("postgresql:u:pw@host/db", "postgresql:***@host/db"),
        ("Postgres:/u:pw@host/db", "Postgres:/***@host/db"),
        ("s3://host:9000/pre@fix", "s3://***@fix"),
        ("//u:pw@host", "//***@host"),
        ("s3://bucket/pre@fix", "s3://bucket/pre@fix"),
        ("s3://b/p?endpoint=h&secret_access_key=x&Password=y&token=", "s3://b/p?endpoint=h&secret_access_key=***&Password=***&token="),
        ("postgresql://db/x?user=me&%70assword=x", "postgresql://db/x?user=me&%70assword=***"),
        ("postgresql://host:5432/db?sslmode=require", "postgresql://host:5432/db?sslmode=require"),
        ("file:///home/me@work/x", "file:///home/me@work/x"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
        ("sc://host:15002/;token=abc/d?e&f=g;user_id=me", "sc://host:15002/;token=***;user_id=me"),
        ("mem:x", "mem:x"),
        ("", ""),
    ],
)  # fmt: skip
def test_redacted_uris(uri: str, shown: str) -> None:
    assert redact_uri(uri) == shown


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("Postgres://u:p?w@host/db?sslmode=require&user=me", ("postgresql", "//host/db")),
        ("postgresql://host/db?table=a&connect_timeout=3&schema=b", ("postgresql", "//host/db", "schema=b", "table=a")),
        ("postgresql://host:5433/db", ("postgresql", "//host:5433/db")),
        ("postgresql://host/db?port=5433", ("postgresql", "//host:5433/db")),
        ("postgresql:///db?host=host&port=5433", ("postgresql", "//host:5433/db")),
        ("s3://b/p/?region=eu&endpoint=http%3A//h&profile=me&access_key_id=A", ("s3", "//b/p", "endpoint=http://h")),
        ("s3://b/p?endpoint=http://h:9000/", ("s3", "//b/p", "endpoint=http://h:9000")),
        ("postgresql://host:5432/db?schema=persist&table=consensus&port=5432", ("postgresql", "//host/db")),
        ("postgresql://u:p@a:5432,b:5433,c:54321/db", ("postgresql", "//a,b:5433,c:54321/db")),
        ("postgresql:///db?host=/run/pg&user=me", ("postgresql", "///run/pg/db")),
        ("postgresql://host?dbname=db", ("postgresql", "//host/db")),
        ("file:///home/me@work/a%20b/", ("file", "/home/me@work/a b")),
        ("file:/home//a/", ("file", "/home/a")),
        ("file://localhost/home/a", ("file", "/home/a")),
        ("sqlite:////a//b.db", ("sqlite", "////a/b.db")),
        ("sqlite:////a/b.db", ("sqlite", "////a/b.db")),
        ("mem:x", ("mem", "x")),
    ],
)
def test_what_a_uri_names(uri: str, place: tuple[str, ...]) -> None:
    assert place_of(uri) == place


@given(
    password=st.text("Q1:/?#@&=\\% \n\u00e9", min_size=1).map(lambda text: f"{text}Q"),
    scheme=st.sampled_from(["postgresql", "s3", "x+y", ""]),
    user=st.sampled_from(["me", ""]),
)
def test_a_password_is_never_shown_whatever_it_holds(password: str, scheme: str, user: str) -> None:
    uri = f"{scheme}:" * bool(scheme) + f"//{user}:{password}@host/db"
    assert redact_uri(uri).endswith("***@host/db")
    assert "Q" not in redact_uri(uri)
    location = PersistLocation(uri, uri)
    assert "Q" not in f"{location!r} {location}"
    try:
        with closing(open_consensus(uri)) as consensus:
            shown = f"{consensus!r} {consensus.uri}"
    except InvalidUri as error:
        shown = str(error)
    assert "Q" not in shown
