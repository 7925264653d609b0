"""What each rewrite for a target brings alone: the default file of ptq beside one without that rewrite.

python -m benchmarks.rewrites DIR                     print the table
python -m benchmarks.rewrites DIR --write             also write it to benchmarks/RESULTS.md
python -m benchmarks.rewrites DIR --only a,b --batch 8    these networks, at another batch size

DIR is laid out as for ``benchmarks.zoo``. All files of a network take turns on one thread. A rewrite that
finds nothing in a network has no row.
"""

import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

import onnxruntime

from benchmarks.network_files import REWRITES, Maker
from benchmarks.results_page import print_part, processor, result_parser
from benchmarks.speed import ratio_cell
from benchmarks.speed_network import opened, ratio_of
from benchmarks.zoo import find_networks
from ptq_cli.models.preparing import prepare_graph
from ptq_cli.models.preparing.passes.merged import HARD_SIGMOID
from ptq_cli.models.preparing.prepare_graph import REST
from ptq_cli.plan.target.target_file import TABLES_FOLDER
from ptq_cli.runtime.timing import Duration, repeat_with_new_sessions

SAMPLES, SECONDS = 48, 4.0
# Of the parts of ``REWRITES``, after the first, which is the target's name.
NAMES = ("HardSwish as Add and Mul", "image channels to 4", "channels to 16", "axes of Softmax joined")
FOLDED, OWN = (
    "HardSigmoid into the layer before it",
    "SiLU as QuickGelu (`quantization.runtime_operators=true`)",
)
COLUMNS = ("network", "rewrite", "time without over with it", "SQNR with it", "SQNR without")


def main() -> None:
    """Parse the arguments, measure, and print or write the table."""
    parser = result_parser("Measure each rewrite for a target alone.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--only", help="names of networks, separated by commas")
    parser.add_argument("--batch", type=int, default=1, help="samples of a run")
    arguments = parser.parse_args()
    only = arguments.only.split(",") if arguments.only else None
    shown = f"--batch {arguments.batch}" + (f" --only {arguments.only}" if arguments.only else "")
    part = "rewrites" if arguments.batch == 1 else f"rewrites_batch_{arguments.batch}"
    table = _table(find_networks(arguments.folder, only), arguments.batch, shown)
    print_part(part, table, write=arguments.write)


def _table(folders: Sequence[Path], batch: int, shown: str) -> Iterator[str]:
    yield from (
        f"`python -m benchmarks.rewrites DIR {shown} --write`, "
        f"{processor()}, onnxruntime {onnxruntime.__version__}, one thread; processor time of the "
        "file without a rewrite over that of the file with it, with the interval of 95 %, and the same by "
        "the clock in italics.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    )
    for folder in folders:
        with tempfile.TemporaryDirectory() as scratch:
            yield from rows(folder, Path(scratch), batch)


def rows(folder: Path, scratch: Path, batch: int) -> Iterator[str]:
    """Make a network's files, let them take turns, and yield a row for each rewrite that does something."""
    maker = Maker(folder, scratch, SAMPLES)
    whole = maker.export("with all")[0].output
    others = {name: file for name, file in _without(maker, folder, scratch) if _differ(file, whole)}
    files = [whole, *others.values()]
    rounds = list(
        repeat_with_new_sessions(
            partial(opened, files, 1), len(files), maker.feeds(batch)[:4], Duration(SECONDS * len(files))
        )
    )
    for index, (name, file) in enumerate(others.items(), start=1):
        ratio, with_it, without = ratio_of(rounds, index), maker.sqnr(whole), maker.sqnr(file)
        if name == OWN:  # It is the one that is off by default.
            ratio, with_it, without = ratio.inverted, without, with_it
        cells = (folder.name, name, ratio_cell(vars(ratio)), f"{with_it:.1f} dB", f"{without:.1f} dB")
        yield f"| {' | '.join(cells)} |"


def _without(maker: Maker, folder: Path, scratch: Path) -> Iterator[tuple[str, Path]]:
    text = (TABLES_FOLDER / "ort-cpu.toml").read_text(encoding="utf-8")
    for name, (part, other) in zip(NAMES, list(REWRITES.items())[1:], strict=True):
        table = scratch / f"{name}.toml"
        table.write_text(text.replace(part, other), encoding="utf-8")
        yield name, maker.export(name, target=str(table))[0].output
    rest = tuple(item for item in REST if item is not HARD_SIGMOID)
    with patch.object(prepare_graph, "REST", rest):
        apart = scratch / "unfolded"
        apart.mkdir()
        yield FOLDED, Maker(folder, apart, SAMPLES).export(FOLDED)[0].output
    yield OWN, maker.export(OWN, runtime_operators=True)[0].output


def _differ(one: Path, other: Path) -> bool:
    """Return whether two files differ in more than a name: a rewrite always changes the size."""
    return abs(one.stat().st_size - other.stat().st_size) > LEAST_CHANGE


LEAST_CHANGE = 64  # Bytes: names of targets and settings in the metadata are shorter


if __name__ == "__main__":
    main()
