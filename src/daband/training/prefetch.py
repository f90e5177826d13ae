"""Prefetching: the next episode's contexts are read in a thread while the policy works on the current one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

__all__ = ["Prefetcher"]

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """What ``read`` gives for episodes 0, 1, ..., each fetched by one thread while the one before is in use.

    Only for reads that depend on the number alone. An error is raised where the episode is asked for. Without
    ``wanted`` nothing is fetched early.
    """

    def __init__(self, read: Callable[[int], T], *, episodes: int, wanted: bool) -> None:
        self._read = read
        self._episodes = episodes
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="daband-prefetch") if wanted else None
        self._next: tuple[int, Future[T]] | None = None

    def take(self, episode: int) -> T:
        """What was read for this episode; the next one is begun."""
        fetched, self._next = self._next, None
        found = fetched[1].result() if fetched is not None and fetched[0] == episode else self._read(episode)
        if self._pool is not None:
            if episode + 1 < self._episodes:
                self._next = (episode + 1, self._pool.submit(self._read, episode + 1))
            else:
                self.close()
        return found

    def close(self) -> None:
        """Shut the thread down and cancel pending reads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
