"""Code of a recipe runs if the user named it or trusts it: a recipe that is found may be somebody else's.

What options, ``--recipe FILE`` and arguments of Python name is granted for the process. What a ``ptq.toml``,
a run directory or the header of a file names is refused, unless the user's own configuration remembers it:
the name with the SHA-256 of its content, in a file for each name.
"""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ptq_cli.core.errors import OutputFileError, UntrustedCodeError
from ptq_cli.core.files import atomic_write

FOLDER_VARIABLE = "PTQ_CONFIG_DIR"  # Environment variable with the folder of the user's configuration.
PICKLE = "trust_pickle"  # Granted where the user allows unpickling: any model that the command reads.

# The code that recipes of the sample models name, by its SHA-256: who runs ptq trusts its authors.
SAMPLE_CODE = {
    "15c8fdb58157b68f1853971893a9cd66f9e6983f155c3242c71fce2f4945c700": ("build",),
    "65a53b62590147c4144183f6dcbceac34429709e8487561f9a9b5a30fd5e6c78": ("build",),
    "828fb9c9f16b1a4d472dbbd13dedb680d50e543dc9a5798aa213a0e8af0ceb31": ("MeanAveragePrecision", "found"),
}


@dataclass
class _Process:
    """What the user said so far.

    Attributes:
        granted: keys of the code that he named.
        found: where a recipe names code, and in which setting, by the key.
        trusts_all: ``--trust-code`` was given.
    """

    granted: set[str] = field(default_factory=set)
    found: dict[str, tuple[str, str]] = field(default_factory=dict)
    trusts_all: bool = False


_process = _Process()


@contextlib.contextmanager
def own_grants() -> Iterator[None]:
    """Run a command with what its own user says, whatever else this process was allowed."""
    global _process  # noqa: PLW0603 - what a user says holds for a process, in all its threads
    before, _process = _process, _Process()
    try:
        yield
    finally:
        _process = before


def trust_all() -> None:
    """Allow, for the rest of the command, all code that recipes name."""
    _process.trusts_all = True


@contextlib.contextmanager
def trust_code() -> Iterator[None]:
    """Run the code that recipes name in a ``with`` block, and remember it, as ``--trust-code`` does.

    Calls of the API run code that an argument or the file ``recipe`` names without that. What a run directory
    or ``./ptq.toml`` names needs it once, unless the user named the same code before.

    Example:
        >>> with trust_code():
        ...     pass  # ptq_cli.evaluate(run="run-of-a-colleague")
    """
    before, _process.trusts_all = _process.trusts_all, True
    try:
        yield
    finally:
        _process.trusts_all = before


def code_key(code: str, arguments: Mapping[str, Any] | None = None) -> str:
    """The key of what a setting names; code that is called with other arguments is other code.

    Example:
        >>> code_key("package.metrics:F1", {"mean": "macro"})
        'package.metrics:F1 {"mean": "macro"}'
    """
    location, _, name = code.rpartition(":")
    if location.endswith(".py"):
        code = f"{os.path.realpath(location)}:{name}"
    return f"{code} {json.dumps(arguments, sort_keys=True, default=str)}" if arguments else code


def model_key(path: Path | str, kind: str) -> str:
    """The key of a model that is a program, such as a pickle."""
    return f"{os.path.realpath(path)} ({kind})"


def grant(settings: Mapping[str, str]) -> None:
    """Allow code that the user named, by its key."""
    _process.granted.update(settings)


def note_found(settings: Mapping[str, str], where: str) -> None:
    """Remember where code is named that the user did not name: the setting by the code's key."""
    for key, setting in settings.items():
        _process.found.setdefault(key, (where, setting))


def is_sample(code: str, digest: str) -> bool:
    """Whether code is that of a sample model, which runs without the files beside it."""
    return code.rpartition(":")[2] in SAMPLE_CODE.get(digest, ())


def require_trust(key: str, digest: str, shown: str, granted_by: str | None = None) -> None:
    """Refuse code that the user did not name and does not trust; remember what he does.

    Args:
        key: what is about to run.
        digest: SHA-256 of its content; empty if that is not known, and then nothing is remembered.
        shown: its name in the message.
        granted_by: the key of what the user allowed, if it is another one.
    """
    granted = granted_by or key
    if granted in _process.granted or _process.trusts_all:
        if digest:
            _remember(key, digest)
        return
    known = _remembered(key)
    if known is not None and known == digest:
        return
    where, setting = _process.found.get(granted, ("a recipe", "code"))
    why = "has changed since you trusted it" if known else "you have neither named nor trusted"
    raise UntrustedCodeError(
        f"{where}: '{setting}' would run '{shown}', which {why}",
        hint="read it, and add --trust-code if you trust it; ptq remembers that until the file changes",
    )


def _folder() -> Path | None:
    own = os.environ.get(FOLDER_VARIABLE)
    if own:
        return Path(own) / "trusted"
    # A relative path would begin in whatever folder the user is in; the XDG specification ignores it, too.
    base = os.environ.get("APPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME", "")
    if os.path.isabs(base):  # noqa: PTH117 - a text, which may be empty
        return Path(base) / "ptq" / "trusted"
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    return Path(home) / ".config" / "ptq" / "trusted" if os.path.isabs(home) else None  # noqa: PTH117


def _record(key: str) -> Path | None:
    folder = _folder()
    return folder / hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest() if folder else None


def _remembered(key: str) -> str | None:
    """The SHA-256 of what was trusted under a key; None if nothing was."""
    path = _record(key)
    try:
        return path.read_bytes()[:64].decode("ascii", "replace") if path is not None else None
    except OSError:  # not there, or not readable: then the user is asked again
        return None


def _remember(key: str, digest: str) -> None:
    path = _record(key)
    if path is None or _remembered(key) == digest:
        return
    content = f"{digest}  {key}\n".encode("utf-8", "surrogateescape")
    # A home that is read-only, as in a container: the user is asked again.
    with contextlib.suppress(OSError, OutputFileError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_write(path) as partial:
            partial.write_bytes(content)
