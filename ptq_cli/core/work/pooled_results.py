"""Work that several threads share, and that ends soon when it is not wanted any more."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def pooled_results(
    pool: ThreadPoolExecutor,
    function: Callable[[Item], Result],
    items: Iterable[Item],
    after_each: Callable[[int], None],
) -> list[Result]:
    """Return what a function makes of each item, in order.

    Args:
        pool: the threads.
        function: is called in them.
        items: what for.
        after_each: is told here how many are done, after each. If it raises, no further item is begun.

    Raises:
        Exception: what the function or ``after_each`` raised.

    Example:
        >>> with ThreadPoolExecutor(2) as pool:
        ...     pooled_results(pool, abs, [-1, 2, -3], lambda done: None)
        [1, 2, 3]
    """
    futures = [pool.submit(function, item) for item in items]
    found = []
    try:
        for future in futures:
            found.append(future.result())
            after_each(len(found))
    finally:
        for future in futures:
            future.cancel()
    return found
