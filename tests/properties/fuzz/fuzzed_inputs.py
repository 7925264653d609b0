"""Fuzzed inputs, each to a command that reads it: a process, which may die of one.

python -m tests.properties.fuzz.fuzzed_inputs TEMPLATE FOLDER FIRST LAST

It prints two lines of JSON for each seed: what is tried, and what came of it. TEMPLATE is written
if it does not exist.
"""

import contextlib
import faulthandler
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ptq_cli.cli.main import run
from ptq_cli.core.process import claim_process
from ptq_cli.recipe.declaration import STATEMENT_SUFFIX
from tests.properties.fuzz.kinds import KINDS
from tests.properties.fuzz.template import write_template

LONGEST_SECONDS = 120  # For one command, on a busy machine
# Bytes of addresses that the process may have, so that the machine keeps some: mapped files count, too.
ADDRESSES = 16 * 2**30
MOST_MEMORY = 2 * 2**30  # Bytes in memory at most: some graphs compute 256 MiB
# Characters of stdout and of stderr, and bytes of files.
MOST_OUT, MOST_ERR, MOST_WRITTEN = 4_000_000, 20_000, 64_000_000
GATED = {"verify", "gate", "evaluate", "quantize"}  # Commands that end with exit status 3 if a limit fails
CHECKPOINTS = re.compile(r"(calibration|evaluation)\.partial\.safetensors$")
Snapshot = dict[str, bytes | Path | None]


@dataclass(frozen=True)
class Outcome:
    """What a command left."""

    status: int
    out: str
    err: str


def snapshot(folder: Path) -> Snapshot:
    """Return every file and folder below a folder: the content, where a link leads, or None for a folder."""
    found: Snapshot = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = path.readlink()
        elif path.is_file():
            found[name] = path.read_bytes()
        else:
            found[name] = None
    return found


def restore(folder: Path, wanted: Snapshot) -> None:
    """Make a folder as it was."""
    found = snapshot(folder)
    for name in sorted(set(found) - set(wanted), reverse=True):
        path = folder / name
        if found[name] is None:
            path.rmdir()
        else:
            path.unlink()
    for name, content in sorted(wanted.items()):
        path = folder / name
        if name in found and found[name] == content:
            continue
        if path.is_symlink():
            path.unlink()
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content is None:
            path.mkdir(exist_ok=True)
        else:
            path.symlink_to(content)


@contextlib.contextmanager
def captured(texts: list[str]) -> Iterator[None]:
    """Catch what this process writes to stdout and stderr, libraries in C++ too."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        kept = os.dup(1), os.dup(2)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, (stream, descriptor) in enumerate(zip((out, err), kept, strict=True)):
                os.dup2(descriptor, number + 1)
                os.close(descriptor)
                stream.seek(0)
                texts.append(stream.read().decode(errors="replace"))


def call(words: list[str]) -> Outcome:
    """Run a command in this process, in the current folder."""
    texts: list[str] = []
    status = 1
    faulthandler.dump_traceback_later(LONGEST_SECONDS, exit=True)
    with captured(texts):
        status = run(words)
    faulthandler.cancel_dump_traceback_later()
    return Outcome(status, *texts)


def outputs_of(words: list[str]) -> list[str]:
    """Return the files and folders that a command was told to write."""
    flags = {"-o", "--output", "--run"}
    return [after for flag, after in itertools.pairwise(words) if flag in flags]


def faults_of(words: list[str], outcome: Outcome, changed: dict[str, int]) -> list[str]:
    """Return what a command must not have done.

    Args:
        words: the command.
        outcome: what it left.
        changed: bytes of each file that it touched; names are relative to the current folder.
    """
    text, faults = outcome.out + outcome.err, []
    if outcome.status not in ((0, 2, 3) if words[0] in GATED else (0, 2)):
        faults.append(f"exit status {outcome.status}: {outcome.err[-400:]}")
    if "Traceback" in text:
        faults.append(f"traceback: {outcome.err[-400:]}")
    if outcome.status == 2 and not re.search(
        r"^error PTQ-[A-Z]+-\d{3}: \S.*\nhint: \S.*\n\Z", outcome.err, re.M
    ):
        faults.append(f"no code, or no hint: {outcome.err[:400]}")
    if odd := {character for character in text if not character.isprintable()} - {"\n"}:
        faults.append(f"control characters {sorted(odd)}")
    if len(outcome.out) > MOST_OUT or len(outcome.err) > MOST_ERR:
        faults.append(f"{len(outcome.out)} and {len(outcome.err)} characters")
    if sum(changed.values()) > MOST_WRITTEN:
        faults.append(f"wrote {sum(changed.values())} bytes")
    named = outputs_of(words)
    named += [f"{name.removesuffix('.onnx')}{STATEMENT_SUFFIX}" for name in named if name.endswith(".onnx")]
    for name in changed:
        allowed = any(name == given or name.startswith((f"{given}/", f"{given}.data")) for given in named)
        if not allowed:
            faults.append(f"touched {name}")
        elif outcome.status == 2 and not CHECKPOINTS.search(name) and name not in named:
            faults.append(f"refused, and touched {name}")
    return faults


def peak() -> int:
    """Return the most memory that this process had since it was last asked, in bytes; 0 where unknown."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def try_seed(seed: int, root: Path, work: Path, pristine: Snapshot) -> dict[str, object]:
    """Fuzz an input, run a command on it, and return what came of it."""
    random = np.random.default_rng(seed)
    shares = np.array([kind.share for kind in KINDS.values()], float)
    name = str(random.choice(list(KINDS), p=shares / shares.sum()))
    lines = KINDS[name].fuzz(random)
    line = lines[int(random.integers(0, len(lines)))]
    words = line.split("\t") if "\t" in line else line.split()
    print(json.dumps({"seed": seed, "kind": name, "command": line}), flush=True)
    before = snapshot(root)
    outcome = call(words)
    after = snapshot(root)
    touched = {key for key in {*before, *after} if before.get(key, "") != after.get(key, "")}
    prefix = f"{work.relative_to(root).as_posix()}/"
    changed = {
        key.removeprefix(prefix) if key.startswith(prefix) else f"../{key}": len(after.get(key) or b"")
        if isinstance(after.get(key), bytes)
        else 0
        for key in touched
    }
    faults = faults_of(words, outcome, changed)
    if (most := peak()) > MOST_MEMORY:
        faults.append(f"took {most >> 20} MiB")
    if outcome.status not in (0, 2, 3):
        restore(root, before)
        faults.append(call([*words, "--debug"]).err[-1500:])
    restore(root, pristine)
    code = re.search(r"^error (PTQ-[A-Z]+-\d{3})", outcome.err, re.MULTILINE)
    return {"seed": seed, "outcome": code[1] if code else str(outcome.status), "faults": faults}


def limit_memory() -> None:
    """Let a process that takes far too much get an error before the machine has none left."""
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))


def main(template: Path, folder: Path, first: int, last: int) -> None:
    """Try the inputs of these seeds."""
    claim_process()
    if not template.exists():
        write_template(template)
    root = folder.resolve()
    work = root / "above" / "work"
    shutil.copytree(template, work)
    scratch = root / "tmp"
    scratch.mkdir()
    tempfile.tempdir = str(scratch)
    os.environ["TMPDIR"] = str(scratch)
    os.chdir(work)
    limit_memory()
    pristine = snapshot(root)
    for seed in range(first, last):
        print(json.dumps(try_seed(seed, root, work, pristine)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
