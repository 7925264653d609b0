"""``verify --answers``: what devices gave for cases, and whether it keeps the limits."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from ptq_cli.core.errors import (
    AnswerError,
    GateError,
    InputFileError,
    OtherCasesError,
    PtqError,
    UsageError,
)
from ptq_cli.core.files import write_together
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.read_files import is_folder
from ptq_cli.devices.device_answers import answer_gates, read_answer
from ptq_cli.devices.manifest import read_manifest
from ptq_cli.evaluation.document.device_document import GATED, DeviceAnswer, DeviceAnswers
from ptq_cli.pipeline.evaluation.report_page import page_with_devices
from ptq_cli.setup.run_directory import RunDirectory


def run_answers(
    answers: Path,
    cases: Path,
    *,
    min_exact_kernels: float | None = None,
    minimum: Mapping[str, float] = MappingProxyType({}),
    progress: ProgressCallback = silent,
) -> DeviceAnswers:
    """Compare the answers of devices with what has to come out; ``write_answers`` puts it on a page.

    ``answers`` is a file that a runner wrote, or a folder of such files, ``cases`` the folder that they ran.
    The limits are the least share of exact kernels, and the least value by metric, of ``GATED``.
    """
    if min_exact_kernels is not None and not 0 <= min_exact_kernels <= 1:
        raise UsageError(
            f"--min-exact-kernels is {min_exact_kernels:g}, expected a share from 0 to 1",
            hint="for example: --min-exact-kernels 1",
        )
    for metric in minimum:
        if metric not in GATED:
            raise GateError(
                f"--min names '{metric}', which answers do not have", hint=f"they have {', '.join(GATED)}"
            )
    manifest = read_manifest(cases)
    files = sorted(answers.glob("*.safetensors")) if is_folder(answers) else [answers]
    if not files:
        raise AnswerError(
            f"the folder '{answers}' has no answers, which are .safetensors files",
            hint="copy what the runners wrote there, under a name for each device",
        )
    devices: list[DeviceAnswer] = []
    refused: list[AnswerError | OtherCasesError | InputFileError] = []
    for number, file in enumerate(files, 1):
        progress(Progress(f"answer {number} of {len(files)}: {file.name}", 0, None))
        try:
            devices.append(read_answer(file, cases, manifest))
        except (AnswerError, OtherCasesError, InputFileError) as error:
            refused.append(error)
    if refused:
        raise _first_of(refused)
    named = _told_apart(devices)
    gates = tuple(answer_gates(named, min_exact_kernels, minimum))
    return DeviceAnswers(cases=str(cases), manifest=manifest, devices=named, gates=gates)


def _first_of(refused: Sequence[PtqError]) -> PtqError:
    """The first error, with what the others say in the same line."""
    messages = dict.fromkeys(error.message for error in refused)
    return type(refused[0])("; ".join(messages), hint=refused[0].hint)


def _told_apart(devices: Sequence[DeviceAnswer]) -> tuple[DeviceAnswer, ...]:
    """Devices of which no two have the same name: their files' names are added."""
    names = Counter(item.device for item in devices)
    return tuple(
        item if names[item.device] == 1 else replace(item, device=f"{item.device} ({Path(item.file).stem})")
        for item in devices
    )


def write_answers(found: DeviceAnswers, run: RunDirectory) -> tuple[Path, ...]:
    """Show what devices gave on the page of a run's report, and return which files were written.

    Edge case:
        A run without a report of this model is left as it is.
    """
    files = page_with_devices(found, run)
    write_together(files)
    return tuple(files)
