"""YAML text -> plain data, strictly and within bounds.

It follows YAML 1.2's core schema without floats and dates: only `true`/`false` are booleans, so a column may have the
name `no` or `on`; `007` and `2026-01-01` stay text. It refuses, with line and column: duplicate keys, several
documents, tags, keys that are not text, recursion, characters that no store takes, and anything beyond the bounds
below (so that neither deep nesting nor aliases of aliases cost more than reading the file).
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any, Protocol

import yaml

from persist_core.errors import InvalidInput

MAX_BYTES = 1 << 20  # many times the size of 2,000 columns with long names
MAX_DEPTH = 32  # a collection file has 4 levels
MAX_NODES = 50_000  # after aliases and merge keys are expanded


class _Mark(Protocol):
    """PyYAML has two classes of marks that share no base."""

    line: int
    column: int


class YamlError(InvalidInput):
    """The text is not the expected YAML. The message starts with `line L, column C: ` if they are known."""

    def __init__(self, message: str, at: _Mark | None = None) -> None:
        super().__init__(f"line {at.line + 1}, column {at.column + 1}: {message}" if at else message)


class _Loader(yaml.SafeLoader):
    """SafeLoader with fewer implicit types. Its messages are the better ones."""


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # without libyaml: the slow one
    """`_Loader` by libyaml, if PyYAML has it: 10 times as fast."""


_FORMS = {  # of values other than text, and their first characters
    "tag:yaml.org,2002:bool": (re.compile(r"(?:true|false)\Z"), list("tf")),
    "tag:yaml.org,2002:null": (re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""]),
    "tag:yaml.org,2002:int": (re.compile(r"[-+]?(0|[1-9][0-9]{0,18})\Z"), list("-+0123456789")),
    "tag:yaml.org,2002:merge": (re.compile(r"<<\Z"), ["<"]),
}
for _loader in (_Loader, _FastLoader):
    _loader.yaml_implicit_resolvers = {}
    for _tag, (_form, _first) in _FORMS.items():
        _loader.add_implicit_resolver(_tag, _form, _first)


def parse_yaml(data: bytes) -> Any:
    """The one document in `data`. Raises `YamlError`; never runs code and stays within the bounds."""
    if len(data) > MAX_BYTES:
        raise YamlError(f"found {len(data)} bytes, expected at most {MAX_BYTES}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise YamlError(
            f"line {line}: found the byte 0x{data[error.start]:02x}, expected UTF-8 text; save it as UTF-8"
        ) from None
    try:
        return _document(text, _FastLoader)
    except (yaml.YAMLError, ValueError, OverflowError):  # `YamlError` too
        return _with_messages(text)


def _with_messages(text: str) -> Any:
    """The document by the slow loader, whose errors say more."""
    try:
        return _document(text, _Loader)
    except YamlError:
        raise
    except (ValueError, OverflowError) as error:  # of `chr`
        raise YamlError(f"found an escape of no character ({error}), expected 0010FFFF at most; correct it") from None
    except yaml.MarkedYAMLError as error:
        raise YamlError(_problem(error), error.problem_mark) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        found = f"U+{ord(text[error.position]):04X}" if error.position < len(text) else "a broken character"
        raise YamlError(f"line {line}: found the character {found}, expected printable text; remove it") from None


def _document(text: str, loader_class: Any) -> Any:
    _check_events(text, loader_class)
    loader = loader_class(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_node(node)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _check_events(text: str, loader_class: Any) -> None:
    """Check depth and count before any recursive code runs: PyYAML's event parser does not recurse."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=loader_class)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH or count > 2 * MAX_NODES:
            limit = f"{MAX_DEPTH} levels" if depth > MAX_DEPTH else f"{MAX_NODES} values"
            said = f"found more than {limit}, expected a collection file; remove the nesting"
            raise YamlError(said, event.start_mark)


def _check_node(root: yaml.Node) -> None:
    """Refuse duplicate keys, keys that are not text, tags, cycles, and too much after expansion of aliases."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node) -> int:
        if id(node) in open_nodes:
            said = "found an anchor that contains itself, expected plain data; remove the reference"
            raise YamlError(said, node.start_mark)
        if id(node) in sizes:
            return sizes[id(node)]
        _check_tag(node)
        open_nodes.add(id(node))
        total = 1
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
            total += sum(1 + size(value) for _key, value in node.value)
        elif isinstance(node, yaml.SequenceNode):
            total += sum(size(item) for item in node.value)
        open_nodes.discard(id(node))
        sizes[id(node)] = total
        if total > MAX_NODES:
            said = f"found over {MAX_NODES} values, with aliases written out, expected at most that; write fewer"
            raise YamlError(said, node.start_mark)
        return total

    size(root)


_UNSTORABLE = re.compile("[\0\ud800-\udfff]")  # escapes can write them; one such text fails the store of all DAGs
_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "bool", "null", "int", "merge"))


def _check_tag(node: yaml.Node) -> None:
    is_other_form = (
        isinstance(node, yaml.ScalarNode) and node.tag in _FORMS and not _FORMS[node.tag][0].match(node.value)
    )
    if node.tag not in _TAGS or is_other_form:
        raise YamlError(f"found the tag {node.tag!r}, expected plain data without tags; remove it", node.start_mark)
    _check_storable(node)


def _check_storable(node: yaml.Node) -> None:
    if isinstance(node, yaml.ScalarNode) and (odd := _UNSTORABLE.search(node.value)):
        said = f"found the character U+{ord(odd[0]):04X}, expected whole characters, and not U+0000; write others"
        raise YamlError(said, node.start_mark)


def _check_keys(node: yaml.MappingNode) -> None:
    seen: dict[Hashable, _Mark] = {}
    for key, _value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
            found = repr(key.value)[:80] if isinstance(key, yaml.ScalarNode) else "a list or mapping"
            raise YamlError(f"found the key {found}, expected text; put it in quotes", key.start_mark)
        _check_storable(key)
        if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
            first = seen[key.value].line + 1
            said = f"found the key {key.value[:80]!r} a second time (first on line {first}), expected each key once"
            raise YamlError(f"{said}; remove one", key.start_mark)
        seen[key.value] = key.start_mark


_EXPECTED = re.compile(r"(?:expected (.*?),? )?(?:but )?(?:got|found) (.*)")


def _problem(error: yaml.MarkedYAMLError) -> str:
    """PyYAML's problem and context in the order of our messages."""
    problem, context = str(error.problem or "bad YAML"), str(error.context or "")
    parts = _EXPECTED.fullmatch(problem)
    found = parts[2] if parts else problem
    expected = (parts[1] if parts else None) or (context.removeprefix("expected ") if "expected " in context else "")
    where = f" ({context})" if context.startswith("while ") else ""
    return f"found {found}{where}, expected {expected or 'valid YAML'}; correct the text there"
