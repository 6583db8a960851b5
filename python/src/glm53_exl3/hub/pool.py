"""Several downloads at once, in threads that never keep the process from ending."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Final, TypeVar

from glm53_exl3.hub.errors import StoppedError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
#: How long an interrupted download may take to write what it holds; threads still busy then die with the process.
_LAST_WORDS_SECONDS: Final = 2.0


def run_parallel(
    function: Callable[[_Item], _Result], items: Sequence[_Item], num_threads: int, stop: threading.Event
) -> Generator[tuple[_Item, _Result | Exception], None, None]:
    """Results, or exceptions, in the order in which they come.

    When the caller leaves early, by an exception or a signal, `stop` is set and the function is expected to raise
    :class:`StoppedError` soon.

    Args:
        function: called from the threads.
        items: one call each, begun in this order.
        num_threads: calls at once.
        stop: set to have no further item begun.
    """
    waiting: queue.SimpleQueue[_Item] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[_Item, _Result | Exception] | None] = queue.SimpleQueue()
    for item in items:
        waiting.put(item)

    def work() -> None:
        while not stop.is_set():
            try:
                item = waiting.get_nowait()
            except queue.Empty:
                break
            try:
                done.put((item, function(item)))
            except StoppedError:
                break
            except Exception as error:
                done.put((item, error))
        done.put(None)

    # Threads of an executor would be waited for when the process ends, however long a stalled server takes.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(num_threads, len(items)))]
    for thread in threads:
        thread.start()
    try:
        ended = 0
        while ended < len(threads):
            result = done.get()
            if result is None:
                ended += 1
            else:
                yield result
    finally:
        stop.set()
        for thread in threads:
            thread.join(_LAST_WORDS_SECONDS / len(threads))
