"""What it costs that a file computes the same on every processor, and how far processors still differ.

python -m benchmarks.portable                    print the table of the sample models
python -m benchmarks.portable FOLDER …           that of other networks
python -m benchmarks.portable --keep FILE        keep what is measured in FILE, and measure the rest next time
python -m benchmarks.portable --beside FILE      the default beside what another processor kept
python -m benchmarks.portable --speed            speed and size of the default, before and now
python -m benchmarks.portable … --write          also write the table to benchmarks/RESULTS.md

A FOLDER with a ``ptq.toml`` is one network, as the samples are; another one holds a folder for each network,
as for ``benchmarks.zoo``. Each network is calibrated once, and exported with each table of the target.
"""

import json
import math
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import onnxruntime

from benchmarks.each_network import table_line
from benchmarks.network_files import Maker
from benchmarks.results_page import print_part, processor, result_parser
from benchmarks.speed import ratio_cell, write_cnn
from benchmarks.speed_network import opened, ratio_of
from benchmarks.timing import evaluate_run, run_ptq
from benchmarks.zoo import find_networks
from benchmarks.zoo_network import reason_of
from ptq_cli.runtime.timing import Duration, repeat_with_new_sessions

SAMPLE_MODELS = Path(__file__).parent.parent / "sample_models"
RECIPE = "ptq.toml"
SECONDS = 60.0  # To measure the speed at each batch size
BATCHES = (1, 8)


TARGET = 'name = "other-weights"\nextends = "ort-cpu"\n[weight]\n'
BEFORE, DEFAULT = "no condition", "default"
# By the form of a file: keys of ``[weight]`` in the target's table.
FORMS = {
    BEFORE: "pair_sum = 0\npreserve_sums = false\n",
    "7 bits": "pair_sum = 0\npreserve_sums = false\nbits = 7\n",
    "pairs": "preserve_sums = false\n",
    DEFAULT: "",
}
# Of a file: ``sqnr`` of the worst output in dB, and ``metric`` and ``of_float`` in words; or ``failed``.
Figures = Mapping[str, Any]
Network = Mapping[str, Figures]  # By the form


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = result_parser("Measure files that compute the same on every processor.")
    parser.add_argument("folders", type=Path, nargs="*", metavar="FOLDER", help="networks instead of samples")
    parser.add_argument("--samples", type=int, help="to calibrate and to evaluate networks of a folder with")
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="measure what is not in this file, and keep it there"
    )
    parser.add_argument("--beside", type=Path, metavar="FILE", help="what another processor kept")
    parser.add_argument("--speed", action="store_true", help="measure speed and size on the CNN sample")
    arguments = parser.parse_args()
    samples = sorted(file.parent for file in SAMPLE_MODELS.glob(f"*/{RECIPE}"))
    folders = list(_networks(arguments.folders or samples))
    part = "portable" if all((folder / RECIPE).exists() for folder in folders) else "portable_networks"
    if arguments.speed:
        part, lines = "portable_speed", speed_table()
    elif arguments.beside:
        part, other = f"{part}_beside", json.loads(arguments.beside.read_text("utf-8"))
        measured = _figures_of(folders, arguments.samples, (DEFAULT, BEFORE), arguments.keep)
        lines = beside_table(measured, other)
    else:
        lines = table(_figures_of(folders, arguments.samples, list(FORMS), arguments.keep))
    print_part(part, lines, write=arguments.write)


def _networks(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        yield from [folder.resolve()] if (folder / RECIPE).exists() else find_networks(folder, None)


def table(measured: Iterable[tuple[str, Network]]) -> Iterator[str]:
    """Yield the lines of a table of networks in all forms."""
    yield _about("SQNR of the worst output, and the metric of a network that has one.")
    yield from ("", table_line("network", *FORMS), f"|{'---|' * (len(FORMS) + 1)}")
    for name, found in measured:
        of_float = found[DEFAULT].get("of_float")
        title = f"{name}, float {of_float}" if of_float else name
        yield table_line(title, *(_cell(found[form]) for form in FORMS))


def beside_table(measured: Iterable[tuple[str, Network]], other: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table that compares networks on this processor with what another one kept."""
    yield _about(f"*Here* is this processor, *there* {other['processor']}; calibrated and exported on each.")
    heads = [f"{form}, {where}" for form in (DEFAULT, BEFORE) for where in ("there", "here")]
    yield from ("", table_line("network", *heads, "difference of the default"), f"|{'---|' * 6}")
    for name, here in measured:
        there = other["networks"][name]
        cells = [figures[form] for form in (DEFAULT, BEFORE) for figures in (there, here)]
        default = [item.get("sqnr", math.nan) for item in cells[:2]]
        yield table_line(name, *map(_cell, cells), f"{default[1] - default[0]:+.3f} dB")


def _about(text: str) -> str:
    return f"`python -m benchmarks.portable`, {processor()}, onnxruntime {onnxruntime.__version__}. {text}"


def _cell(figures: Figures) -> str:
    """Return the figures of a file as text.

    Example:
        >>> _cell({"sqnr": 36.661, "metric": "85.20%", "of_float": "85.30%"}), _cell({"failed": "error"})
        ('36.66 dB, 85.20%', 'error')
    """
    if "failed" in figures:
        return str(figures["failed"])
    return f"{figures['sqnr']:.2f} dB" + (f", {figures['metric']}" if figures["metric"] else "")


def _figures_of(
    folders: Sequence[Path], samples: int | None, forms: Sequence[str], keep: Path | None
) -> Iterator[tuple[str, Network]]:
    """Yield the name of each network and its figures in some forms, as ``keep`` has them or by measuring."""
    kept: dict[str, Network] = {}
    if keep is not None and keep.exists():
        found = json.loads(keep.read_text("utf-8"))
        if found["processor"] != processor():
            sys.exit(f"'{keep}' is of {found['processor']}, and this is {processor()}")
        kept = found["networks"]
    for folder in folders:
        if folder.name not in kept:
            kept[folder.name] = dict(_measured(folder, samples, forms))
            if keep is not None:
                keep.write_text(json.dumps({"processor": processor(), "networks": kept}), encoding="utf-8")
        yield folder.name, kept[folder.name]


def _measured(folder: Path, samples: int | None, forms: Sequence[str]) -> Iterator[tuple[str, Figures]]:
    """Calibrate a network once, and yield the name and the figures of each form."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        run, home = str(scratch / "run"), folder
        if not (folder / RECIPE).exists():
            home = scratch
            (scratch / RECIPE).write_text(_recipe(folder, samples), encoding="utf-8")
        try:
            run_ptq(["calibrate", "--run", run], home)
        except CalledProcessError as error:
            yield from ((form, {"failed": reason_of(error)}) for form in forms)
            return
        for form in forms:
            recipe = _recipe_of_target(scratch, FORMS[form])
            try:
                run_ptq(["export", "--run", run, "--reset", *recipe], home)
                yield form, _figures(evaluate_run(run, home, *recipe))
            except CalledProcessError as error:
                yield form, {"failed": reason_of(error)}


def _recipe_of_target(scratch: Path, keys: str) -> tuple[str, str]:
    """Write a target with other keys of its weights, and return the flag of a recipe that names it."""
    (scratch / "target.toml").write_text(TARGET + keys, encoding="utf-8")
    recipe = scratch / "form.ptq.toml"
    recipe.write_text('[quantization]\ntarget = "target.toml"\n', encoding="utf-8")
    return "--recipe", str(recipe)


def _recipe(folder: Path, samples: int | None) -> str:
    limit = f"samples = {samples}\n" if samples else ""
    parts = (("calibration", "calib.npz"), ("evaluation", "eval.npz"))
    data = "".join(f"[{part}]\ndata = '{folder / file}'\n{limit}" for part, file in parts)
    return f"[model]\npath = '{folder / 'model.onnx'}'\n{data}"


def _figures(report: Mapping[str, Any]) -> Figures:
    metrics = report["metrics"]
    judged = next((item for item in metrics if item["float_value"] is not None), None)
    values = [] if judged is None else [judged[f"{kind}_value"] for kind in ("quantized", "float")]
    is_share = judged is not None and judged["unit"] == "share"
    words = [f"{value:.2%}" if is_share else f"{value:#.4g}" for value in values] or ["", ""]
    sqnr = min(item["quantized_value"] for item in metrics if item["name"] == "sqnr_db")
    return {"sqnr": sqnr, "metric": words[0], "of_float": words[1]}


def speed_table() -> Iterator[str]:
    """Yield a table of the CNN sample's speed and size, of the default and of what it was before."""
    yield _about("CNN sample, one thread; processor time from runs in which all take turns, with intervals.")
    titles = ("batch", "default over float", f"{BEFORE} over float", f"default over {BEFORE}", "size of both")
    yield from ("", table_line(*titles), f"|{'---|' * len(titles)}")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        write_cnn(scratch)
        target = scratch / "before.toml"
        target.write_text(TARGET + FORMS[BEFORE], encoding="utf-8")
        maker = Maker(scratch, scratch, 256)
        files = [
            maker.export(DEFAULT)[0].output,
            maker.prepared,
            maker.export(BEFORE, target=str(target))[0].output,
        ]
        sizes = " and ".join(f"{files[index].stat().st_size:,} bytes" for index in (0, 2))
        for batch in BATCHES:
            feeds = maker.feeds(batch)[:4]
            rounds = list(
                repeat_with_new_sessions(partial(opened, files, 1), len(files), feeds, Duration(SECONDS))
            )
            of_float, of_before = (ratio_of(rounds, index) for index in (1, 2))
            before = f"{of_float.processor / of_before.processor:.2f}"
            yield table_line(
                str(batch), ratio_cell(vars(of_float)), before, ratio_cell(vars(of_before)), sizes
            )


if __name__ == "__main__":
    main()
