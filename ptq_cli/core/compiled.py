"""Functions that numba compiles: it is imported with the first call, since most commands count nothing."""

import threading
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

_LOCK = threading.RLock()


class _Compiled:
    """A function that is handed to numba when it is first called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self._function = function
        self._dispatcher: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        return (self._dispatcher or self.dispatcher())(*arguments)

    def dispatcher(self) -> Callable[..., Any]:
        with _LOCK:
            if self._dispatcher is None:
                self._dispatcher = _compile(self._function)
        return self._dispatcher


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function compiled by numba when it is first called, and kept on disk where that is possible.

    It may call others that are compiled, of its own module or imported by name.

    Edge case: Where neither the package's folder nor the user's cache can be written, as in a read-only
        container, each process compiles for itself.

    Example:
        >>> @compiled
        ... def double(x):
        ...     return x + x
        >>> double(21)
        42
    """
    return _Compiled(function)


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    from numba import njit

    # Numba looks up what the function calls among the globals, and has to find its own there.
    names = function.__globals__
    for name in function.__code__.co_names:
        if isinstance(called := names.get(name), _Compiled):
            names[name] = called.dispatcher()
    try:
        result: Callable[..., Any] = njit(nogil=True, cache=True)(function)
    except RuntimeError:
        return njit(nogil=True)(function)
    _forget_unreadable(result)
    return result


def _forget_unreadable(dispatcher: Any) -> None:
    """Empty a cache on disk that names classes which an older version of ptq had."""
    # numba reads the whole index of a cache before it looks whether the source has changed since.
    cache = dispatcher._cache
    try:
        cache._cache_file._load_index()
    except (AttributeError, ImportError):
        cache.flush()
