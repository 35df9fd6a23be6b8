"""Times of an earlier generation: changes since them are refused after a swap."""

from __future__ import annotations

from persist_core.errors import GenerationChanged
from persist_core.shard.state import ShardState
from persist_core.time_text import show_time


def check_generation(state: ShardState, after: int, known: int | None) -> None:
    """Raise `GenerationChanged` if what the reader knows as of `after` may be of an earlier generation.

    `known`: the generation that the reader names; `None` if it only knows the time.
    """
    swaps = state.origin.swaps
    if not swaps or known == len(swaps) or (known is None and after >= swaps[-1].upper):
        return
    raise GenerationChanged(
        f"shard {state.shard} was rebuilt: generation {len(swaps)} was swapped in at {show_time(swaps[-1].upper)}, and"
        f" the changes asked for begin at {show_time(after)}"
        + (f" of generation {known}" if known is not None else ", before it")
        + ". What a consumer has kept since then may differ. Take a whole snapshot, and go on from its time; or, if"
        f" key and columns are the same, apply the difference: `persist diff {state.shard} --a {swaps[-1].kept}`, while"
        " that one is kept. To read this generation's own history, name it (`generation`, `--generation`)"
    )
