"""Columns and records of a changing collection, at random."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tests.oracle.changing import Definition, Field

WIDTH = 40  # columns that there can ever be
SHOP, OP, SEQ, WEIGHT, FIRST = 0, 1, 2, 3, 4  # places
WIDER = {"int": "bigint", "float": "double", "decimal(6,2)": "decimal(9,2)"}
FAMILIES = {"i": "int", "f": "float", "d": "decimal(6,2)", "s": "string"}
BEGIN = (Field(FIRST, "i0", "int"), Field(FIRST + 1, "d0", "decimal(6,2)"))


class Columns:
    """See the module. Names come back: for other columns, of other types."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self._places, self._counts = FIRST + len(BEGIN), Counter({"i": 1, "d": 1})
        self._used = [each.name for each in BEGIN]
        self._seq = 0

    def evolved(self, definition: Definition, now: Definition) -> Definition:
        """A change of `definition`; `now` is the one of the newest commit."""
        fields, dropped = list(definition.fields), list(definition.dropped)
        own = [place for place, each in enumerate(fields) if each.place >= FIRST]
        kind = self.chance.choice(["add", "add", "drop", "rename", "widen", "widen"])
        if kind == "add" and self._places < WIDTH:
            family = self.chance.choice("ifds")
            name = self._new_name(family, (*fields, *now.fields))
            fields.insert(self.chance.randrange(len(fields) + 1), Field(self._places, name, FAMILIES[family]))
            self._places += 1
        elif kind == "drop" and own:
            self._drop(fields, dropped, own, now)
        elif kind == "rename" and own:
            self._rename(fields, own, now)
        elif kind == "widen":
            self._widen(fields, [*own, *(p for p, each in enumerate(fields) if each.place == WEIGHT)])
        names = {each.name for each in fields}
        dropped = [name for name in dropped if name not in names]
        return replace(definition, fields=tuple(fields), dropped=tuple(dropped))

    def _drop(self, fields: list[Field], dropped: list[str], own: list[int], now: Definition) -> None:
        """One, unless another column takes its name in the same run: that needs two."""
        gone = fields.pop(self.chance.choice(own))
        if any(each.place == gone.place and each.name in {other.name for other in fields} for each in now.fields):
            fields.append(gone)
        else:
            dropped.append(gone.name)

    def _widen(self, fields: list[Field], places: list[int]) -> None:
        place = self.chance.choice(places)
        fields[place] = replace(fields[place], type=WIDER.get(fields[place].type, fields[place].type))

    def _rename(self, fields: list[Field], own: list[int], now: Definition) -> None:
        """One to three columns, of which each may get the name that the one before has left; one name a run."""
        names = {each.place: each.name for each in now.fields}
        left: list[str] = []
        for place in self.chance.sample(own, min(len(own), self.chance.randrange(1, 4))):
            old = fields[place]
            if names.get(old.place) == old.name:
                is_next = left and self.chance.random() < 0.5
                name = left.pop() if is_next else self._new_name(old.name[0], (*fields, *now.fields))
                fields[place] = replace(old, name=name, renamed_from=old.name)
                left = [old.name]
                if self.chance.random() < 0.3:
                    self._widen(fields, [place])
        for place, each in enumerate(fields):  # what is done is not declared again: it could be meant once more
            if names.get(each.place) == each.name:
                fields[place] = replace(each, renamed_from=None)

    def _new_name(self, family: str, fields: Iterable[Field]) -> str:
        """A new one, or one that a column has had which has it no longer."""
        taken = {each.name for each in fields}
        free = sorted(name for name in self._used if name not in taken)
        return self.chance.choice(free) if free and self.chance.random() < 0.5 else self._name(family)

    def record(self, definition: Definition) -> dict[str, Any]:
        """Fields of columns that there are, and of some that may come."""
        self._seq += 1
        seq = self._seq if self.chance.random() < 0.8 else -self._seq
        record = {"id": self.chance.randrange(5), "shop": self.chance.choice(["a", "b"]), "seq": seq}
        if self.chance.random() < 0.2:
            return {**record, "op": "D"}
        record["weight"] = self.value("i")
        kinds = {f"{family}{self._counts[family] + more}": family for family in FAMILIES for more in range(2)}
        own = [each for each in definition.fields if each.place >= FIRST]
        kinds |= {each.name: each.type[0].replace("b", "i") for each in own}
        return {**record, **{name: self.value(kind) for name, kind in kinds.items() if self.chance.random() < 0.6}}

    def value(self, family: str) -> Any:
        """A value of a family, in every tenth record one that narrow types do not have."""
        if self.chance.random() < 0.1:
            return {"i": 2**40, "f": 0.1, "d": 123456.5, "s": ""}[family]
        number = self.chance.randrange(4)
        return {"i": number, "f": number / 2, "d": number / 4, "s": f"t{number}"}[family]

    def _name(self, family: str) -> str:
        self._counts[family] += 1
        self._used.append(f"{family}{self._counts[family] - 1}")
        return self._used[-1]
