"""``ptq verify`` for devices without ptq: its options, the table of cases, and the table of answers."""

from collections.abc import Sequence
from pathlib import Path

from ptq_cli.core.words import format_bytes
from ptq_cli.devices.run_cases import PackedCases
from ptq_cli.evaluation.document.device_document import DeviceAnswer, DeviceAnswers, Manifest
from ptq_cli.report.text.markdown import (
    NUMBERS,
    REFERENCES,
    device_table,
    kernel_table,
    missed_lines,
    reference_line,
    share_text,
    time_text,
)
from ptq_cli.report.text.numbers import format_decibels
from ptq_cli.terminal.options.help_sections import DATA, ELSEWHERE, EVALUATION, option
from ptq_cli.terminal.options.shared_options import PATH
from ptq_cli.terminal.output import print_table, say, tell
from ptq_cli.terminal.phrases import counted, shown_path

CASES = (
    option(
        ELSEWHERE,
        "--pack",
        type=PATH,
        metavar="CASES",
        help="Write a folder with the model, its integer kernels, inputs, expected outputs, and scripts that "
        "run them without ptq.",
    ),
    option(
        DATA,
        "--samples",
        type=int,
        metavar="N",
        help="Number of samples in the folder that --pack writes.  [default: 8]",
    ),
    option(
        ELSEWHERE,
        "--answers",
        type=PATH,
        metavar="FILE|DIR",
        help="Compare what these scripts wrote on a device, or a folder of it from several devices, with the "
        "folder of cases, which is named in place of MODEL.",
    ),
    option(
        ELSEWHERE,
        "--min-exact-kernels",
        type=float,
        metavar="X",
        help="Exit with status 3 if a smaller share of a device's kernels gives the exact integers: 1.",
    ),
    option(
        EVALUATION,
        "--min",
        "minimum",
        multiple=True,
        metavar="METRIC=X",
        help="Exit with status 3 if sqnr_db or top1_agreement of a device is below X. Can be repeated.",
    ),
)


def require_one_use(
    pack: Path | None,
    answers: Path | None,
    *,
    model: Path | None,
    samples: int | None,
    limited: bool,
) -> None:
    """Refuse options that belong to another use of the command."""
    from ptq_cli.core.errors import UsageError

    if pack is not None and answers is not None:
        raise UsageError("--pack and --answers cannot be used together", hint="pack first; a device answers")
    if answers is not None and model is None:
        raise UsageError(
            "--answers needs the folder of cases that the device ran",
            hint="ptq verify --answers answer.safetensors CASES",
        )
    if samples is not None and pack is None:
        raise UsageError("--samples is for --pack", hint="ptq verify --pack CASES --samples 8")
    if limited and answers is None:
        raise UsageError(
            "--min and --min-exact-kernels are for --answers",
            hint="ptq evaluate has limits of metrics; ptq verify --answers FILE CASES has those of devices",
        )


def print_packed(result: PackedCases) -> None:
    """Print what a folder of cases holds, and how a device runs it."""
    manifest, folder = result.manifest, shown_path(result.cases)
    kernels = counted(len(manifest.kernels), "integer kernel")
    say(f"{manifest.source}: {kernels}, {counted(manifest.samples, 'sample')} of {manifest.data}")
    say(f"wrote {folder} ({format_bytes(result.bytes)})")
    tell("next, on a device with numpy and onnxruntime: python run.py in that folder; its README.md has more")


def print_answers(result: DeviceAnswers, written: Sequence[Path]) -> None:
    """Print what devices gave, one in detail or a row for each, and which files of the run show it now."""
    manifest = result.manifest
    say(
        f"{manifest.source} for {manifest.target}: {counted(len(manifest.kernels), 'kernel')}, "
        f"{counted(manifest.samples, 'sample')}, packed on {manifest.machine}"
    )
    if len(result.devices) == 1:
        _print_device(result.devices[0], manifest)
    else:
        _print_devices(result)
    for line in missed_lines(result):
        say(line)
    if written:
        say(f"wrote {shown_path(written[0])}, {' and '.join(path.name for path in written[1:])}")
    if result.gates:
        say("PASS" if result.verdict == "pass" else "FAIL")


def _print_device(item: DeviceAnswer, manifest: Manifest) -> None:
    say(
        f"{item.device} ({item.machine}, {item.system}): {item.runtime}, {item.provider}, "
        f"{counted(item.threads, 'thread')}"
    )
    table, wrong = kernel_table(item)
    if item.kernels:
        say(f"kernels: {len(item.kernels) - wrong:,} of {len(item.kernels):,} exact")
    else:
        say("kernels: none that integers alone decide")
    if wrong:
        print_table(table, right=(2, 3), whole=(1, 2, 3))
        if wrong > len(table.rows):
            say(f"and {wrong - len(table.rows):,} more; --json lists all of them")
        say(f"first layer that differs: {item.first_difference}")
    for output in item.outputs:
        agreement, expected = map(share_text, (output.top1_agreement, output.expected_top1_agreement))
        say(
            f"{output.output}: SQNR {format_decibels(output.sqnr_db)}"
            f"{agreement and f', top-1 agreement {agreement}'}; "
            f"expected {format_decibels(output.expected_sqnr_db)}{expected and f' and {expected}'}"
        )
    if item.outputs:
        say(f"both against {REFERENCES[manifest.reference]}")
    if item.seconds is not None:
        say(f"time per run: {time_text(item)}")


def _print_devices(result: DeviceAnswers) -> None:
    print_table(device_table(result), right=NUMBERS, whole=NUMBERS, optional=(6, 3))
    if line := reference_line(result):
        say(line)
