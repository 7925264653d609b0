"""How cases for devices, and the answers of devices, are shown."""

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
from ptq_cli.terminal.output import print_table, say, tell
from ptq_cli.terminal.phrases import counted, shown_path


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
