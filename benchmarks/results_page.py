"""The page of results: a benchmark prints what it measures, and writes it there if that is asked for."""

import argparse
import platform
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tools.marked import write_part

RESULTS = Path(__file__).parent / "RESULTS.md"
# What PyTorch calls the instructions that decide which kernels multiply bytes, and what their makers do.
INSTRUCTIONS = {
    "avx2": "AVX2",
    "avx512_f": "AVX-512",
    "avx_vnni": "AVX-VNNI",
    "avx512_vnni": "AVX-512 VNNI",
    "amx_int8": "AMX",
    "dot": "dot products",
    "i8mm": "I8MM",
}


def processor() -> str:
    """Return the processor's architecture, with those of its instructions that integer kernels use.

    Speeds, and files without the condition on pairs, depend on them.
    """
    import torch

    found = torch.cpu.get_capabilities()
    names = ", ".join(name for key, name in INSTRUCTIONS.items() if found.get(key))
    return f"{platform.machine()} with {names}" if names else platform.machine()


def result_parser(description: str, page: Path = RESULTS) -> argparse.ArgumentParser:
    """Return the parser of a benchmark, which may take more options than ``--write``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--write", action="store_true", help=f"write what is measured to {page.parent.name}/{page.name}"
    )
    return parser


def networks_parser(description: str, samples: int, *, is_optional: bool = False) -> argparse.ArgumentParser:
    """Return the parser of a benchmark of a folder of networks."""
    parser = result_parser(description)
    parser.add_argument("folder", type=Path, metavar="DIR", nargs="?" if is_optional else None)
    parser.add_argument("--only", type=lambda text: text.split(","), help="names, separated by commas")
    parser.add_argument(
        "--samples", type=int, default=samples, help="to calibrate and to evaluate with, at most"
    )
    return parser


def is_to_write(description: str, page: Path = RESULTS) -> bool:
    """Return whether the command line of a benchmark without other options asks for ``--write``."""
    return bool(result_parser(description, page).parse_args().write)


def print_part(
    name: str, lines: Iterable[str], *, write: bool, page: Path = RESULTS, keep_rows: bool = False
) -> None:
    """Print lines as they are measured, and write them to the page of results if that is asked for."""
    found = []
    for line in lines:
        print(line, flush=True)
        found.append(line)
    if write:
        found = merged(found, page.read_text("utf-8"), name) if keep_rows else found
        write_part(page, name, "\n".join(found))


def between(tables: Iterable[str]) -> Iterator[str]:
    """Yield tables with an empty line before each but the first.

    Example:
        >>> list(between(["| a |", "| b |"]))
        ['| a |', '', '| b |']
    """
    for index, table in enumerate(tables):
        if index:
            yield ""
        yield table


def merged(lines: Sequence[str], page: str, part: str) -> list[str]:
    r"""Return the lines of a table, with the rows of an earlier one that are not measured now.

    Example:
        >>> page = "<!-- t:begin -->\n| x |\n|---|\n| a | 1 |\n| b | 2 |\n<!-- t:end -->"
        >>> merged(["| x |", "|---|", "| b | 3 |"], page, "t")
        ['| x |', '|---|', '| a | 1 |', '| b | 3 |']
    """
    text = page.partition(f"<!-- {part}:begin -->")[2].partition(f"<!-- {part}:end -->")[0]
    earlier = text.strip().splitlines()
    rows = {line.split("|")[1].strip(): line for line in (*earlier[2:], *lines[2:])}
    return [*lines[:2], *(rows[name] for name in sorted(rows))]
