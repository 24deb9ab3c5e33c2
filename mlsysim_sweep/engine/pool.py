"""Work on several threads, with results in order and a bounded number of items under way."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")
P = ParamSpec("P")


class Here(Executor):
    """An executor that does the work at once, on the calling thread."""

    def submit(self, fn: Callable[P, Found], /, *args: P.args, **kwargs: P.kwargs) -> Future[Found]:
        """Call now; an exception is raised here, not kept."""
        future: Future[Found] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@contextlib.contextmanager
def threads(workers: int) -> Iterator[Executor]:
    """That many threads; one is the calling thread itself. Work not begun is dropped at exit."""
    if workers == 1:
        yield Here()
        return
    pool = ThreadPoolExecutor(workers)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def ordered(
    pool: Executor, function: Callable[[Item], Found], items: Iterable[Item], ahead: int
) -> Iterator[Found]:
    """``function`` of each item, in the order of the items, at most ``ahead`` of them under way."""
    waiting: deque[Future[Found]] = deque()
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
