"""Each network is measured by a process of its own, so that none changes another's memory or threads."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Found = Mapping[str, Any]  # What a process says of a network, or of one row of it


def measure_apart(module: str, folder: Path, options: Mapping[str, object], longest: int) -> Found | str:
    """Return what a process says about a network, or why it says nothing; how long it took goes to stderr."""
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", f"benchmarks.{module}", str(folder), scratch, *flags]
        begin = time.perf_counter()
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=longest)
        except subprocess.TimeoutExpired:
            return f"took more than {longest} s"
    print(f"{folder.name}: {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        return f"exit status {done.returncode}: {last[0] if last else 'no message'}"
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


def measured_table(
    module: str,
    folders: Sequence[Path],
    options: Mapping[str, object],
    longest: int,
    columns: Sequence[str],
    cells: Callable[[Found, Found], Iterator[str]],
) -> Generator[str, None, list[Found]]:
    """Measure networks, yield the lines of a table, and return what was measured."""
    yield from (f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}")
    found = []
    for folder in folders:
        network = measure_apart(module, folder, options, longest)
        if isinstance(network, str):
            yield table_line(folder.name, network, columns=len(columns))
            continue
        found.append(network)
        for measured in network["measured"]:
            yield table_line(*cells(network, measured))
    return found


def network_parser(description: str) -> argparse.ArgumentParser:
    """Return the parser of a process that ``measure_apart`` starts, which may take more options."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--samples", type=int, required=True)
    return parser


def table_line(*cells: str, columns: int = 0) -> str:
    """Return a line of a Markdown table, with empty cells up to a number of columns.

    Example:
        >>> table_line("a", "b|c", columns=3)
        '| a | b/c |  |'
    """
    padded = [*cells, *[""] * (columns - len(cells))]
    return f"| {' | '.join(cell.replace('|', '/') for cell in padded)} |"
