"""Fewer messages from PySpark to its JVM: a small commit sends thousands, and they are a fifth of its processor time.

    jvm.functions.col("v0")      asked for once, then the answer is kept: it has no session and never changes
    jvm.PythonUtils.toSeq(list)  the list goes in messages of ten elements, not of one
    jvm.functions, methods ..    looked up once: else PySpark asks for class and method each time, and the JVM looks
                                 for the class in each jar

Spark Connect sends a plan as a whole and needs none of this.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

# By the names that PySpark gives them.
_ASKED_OFTEN = (
    "functions",
    "org.apache.spark.sql.functions",
    "PythonUtils",
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.types.Metadata",
)
_PURE = ("col", "lit")
_ANSWERS = 4096  # kept of each function
_ELEMENTS = 10  # the most that `java.util.List.of` takes in one message


def send_fewer(own: SparkSession) -> None:
    """Let all calls of this session's JVM, from any session, send fewer messages."""
    py4j: Any = importlib.import_module("py4j.java_gateway")
    jvm: Any = own.sparkContext._jvm

    class Kept(py4j.JavaClass):  # type: ignore[misc] # - py4j has no types
        def __getattr__(self, name: str) -> Any:
            found = super().__getattr__(name)
            if isinstance(found, py4j.JavaMember):
                if name in _PURE:
                    found = _remembered(found)
                if name == "toSeq":
                    lists = [Kept(f"java.util.{kind}", self._gateway_client) for kind in ("List", "ArrayList")]
                    found = _in_few_messages(found, *lists)
                setattr(self, name, found)
            return found

    for name in _ASKED_OFTEN:
        if name not in vars(jvm):
            found = getattr(jvm, name)
            if isinstance(found, py4j.JavaClass):
                setattr(jvm, name, Kept(found._fqn, found._gateway_client))


def names_set(own: SparkSession) -> list[str]:
    """The names of all settings of a session; Spark's own way asks for each pair alone."""
    keys: Any = own.conf._jconf.getAllAsJava().keySet()
    return str(keys.toString()).strip("[]").split(", ")


def _remembered(member: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.lru_cache(_ANSWERS, typed=True)
    def kept(value: Any) -> Any:
        return member(value)

    # Not of floats: 0.0 equals -0.0.
    return lambda value: kept(value) if isinstance(value, str | bool | int) else member(value)


def _in_few_messages(member: Callable[[Any], Any], immutable: Any, growing: Any) -> Callable[[Any], Any]:
    def ask(elements: Any) -> Any:
        if not isinstance(elements, list | tuple) or not elements or any(each is None for each in elements):
            return member(elements)
        pieces = [immutable.of(*elements[at : at + _ELEMENTS]) for at in range(0, len(elements), _ELEMENTS)]
        if len(pieces) == 1:
            return member(pieces[0])
        whole = growing(pieces[0])
        for piece in pieces[1:]:
            whole.addAll(piece)
        return member(whole)

    return ask
