"""What ``ptq tune`` promises, and what it brings.

python -m benchmarks.tune                    how often a budget that is called kept is exceeded
python -m benchmarks.tune DIR                what it brings to the networks of a folder
python -m benchmarks.tune --only a           the same on this sample model alone
python -m benchmarks.tune --write            also write the tables to benchmarks/RESULTS.md
python -m benchmarks.tune DIR --only a,b --write    replace the rows of these networks

Without DIR: on synthetic models, whose true drop is known, and on models of the repository, whose answers to
all samples are known (``benchmarks/tune_trials.py``). With DIR: networks are
tuned to 6 dB more than their default has; ``benchmarks/zoo.py`` says what is in DIR.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.each_network import measure_apart, table_line
from benchmarks.results_page import networks_parser, print_part
from benchmarks.tune_trials import SAMPLES, sample_lines, synthetic_lines
from benchmarks.zoo import find_networks

LONGEST_NETWORK = 3600  # Seconds after which a network is given up
NAMED = 4  # Layers that a row names
GAIN = 6.0
COLUMNS = (
    "network",
    "before",
    "after",
    "gain",
    "rungs",
    "goal",
    "in 16 bits",
    "dynamic",
    "in float",
    "integer work",
    "file",
    "s",
)


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = networks_parser("Measure what ptq tune promises and brings.", 48, is_optional=True)
    parser.add_argument("--time-budget", default="", help="of each network, as --time-budget takes it")
    parser.add_argument("--rungs", default="auto", help="of recovery, as recovery.rungs takes them")
    arguments = parser.parse_args()
    only = arguments.only
    if arguments.folder is not None:
        folders = find_networks(arguments.folder, only)
        lines = _networks(folders, arguments.samples, arguments.rungs, arguments.time_budget)
        print_part("tune_networks", lines, write=arguments.write, keep_rows=True)
        return
    tables = {"tune_samples": sample_lines(only or SAMPLES)}
    for part, table in {**({} if only else {"tuning": synthetic_lines()}), **tables}.items():
        print_part(part, table, write=arguments.write)


def _networks(folders: Sequence[Path], samples: int, rungs: str, time_budget: str) -> Iterator[str]:
    yield table_line(*COLUMNS)
    yield f"|{'---|' * len(COLUMNS)}"
    for folder in folders:
        options = {"samples": samples, "gain": GAIN, "rungs": rungs, "time-budget": time_budget}
        yield network_line(folder.name, measure_apart("tune_network", folder, options, LONGEST_NETWORK))


def network_line(network: str, found: Mapping[str, Any] | str) -> str:
    """Return the line of a network: a ``TunedRow``, or why there is none.

    Example:
        >>> network_line("a", "took more than 3600 s").startswith("| a | took more than 3600 s |")
        True
    """
    if isinstance(found, str):
        return table_line(network, found, columns=len(COLUMNS))
    gain = found["after"] - found["before"]
    return table_line(
        network,
        f"{found['before']:.1f} dB",
        f"{found['after']:.1f} dB{'' if found['met'] else ', not proven'}",
        f"{gain:.1f} dB",
        ", ".join(found["rungs"]),
        f"{found['goal_db']:g} dB" if found["goal_db"] else "",
        *(_names(found[key]) for key in ("in_16_bits", "dynamic", "in_float")),
        " to ".join(
            "" if found[key] is None else f"{found[key]:.1%}" for key in ("work_before", "work_after")
        ),
        f"{found['size_before']:.1%} to {found['size_after']:.1%}",
        f"{found['seconds']:.0f}",
    )


def _names(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{len(names)}: {', '.join(f'`{name}`' for name in names[:NAMED])}{more}"


if __name__ == "__main__":
    main()
