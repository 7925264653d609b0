"""What devices gave for a folder of cases, compared with what has to come out; and ``verify --answers``."""

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from ptq_cli.core.errors import (
    AnswerError,
    GateError,
    InputFileError,
    OtherCasesError,
    PtqError,
    UsageError,
    first_line,
)
from ptq_cli.core.files import write_together
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.read_files import is_folder, read_file
from ptq_cli.core.tensors import Array, format_shape
from ptq_cli.devices.run_cases import CASE_OUTPUT, CASE_REFERENCE, CASE_TOLERANCE, read_manifest, read_tensors
from ptq_cli.evaluation.document.device_document import (
    CASE_MODEL,
    GATED,
    Case,
    CaseGate,
    DeviceAnswer,
    DeviceAnswers,
    DeviceKernel,
    DeviceOutput,
    Manifest,
)
from ptq_cli.evaluation.metrics.class_accuracy import Top1Agreement
from ptq_cli.evaluation.metrics.value_errors import Sqnr
from ptq_cli.pipeline.evaluation.report_page import page_with_devices
from ptq_cli.setup.run_directory import RunDirectory

_FORMAT, _VERSION = "ptq.answer", "1"
RUN_AGAIN = "run the cases on the device again, and copy the whole file"
QUARTERS = 4  # The tolerance of a float is a quarter of the step from its sum to the next one
_Runs = Sequence[Mapping[str, Mapping[str, Array]]]


def answer_gates(
    devices: Iterable[DeviceAnswer], min_exact_kernels: float | None, minimum: Mapping[str, float]
) -> Iterator[CaseGate]:
    """Yield each limit on each device, with what was found; ``minimum`` is by metric, of ``GATED``."""
    for item in devices:
        if min_exact_kernels is not None:
            yield CaseGate(
                device=item.device, metric="exact_kernels", limit=min_exact_kernels, value=item.exact_share
            )
        for metric, limit in minimum.items():
            found: Any = metric
            yield CaseGate(device=item.device, metric=found, limit=limit, value=getattr(item, metric))


def read_answer(path: Path, folder: Path, manifest: Manifest) -> DeviceAnswer:
    """Answers of a device to the cases of a folder."""
    tensors, about = _unpacked(path)
    _require_same_cases(path, about, manifest)
    try:
        seconds, faults = json.loads(about["seconds"]), json.loads(about["faults"])
        times = [float(item) for item in seconds.get(CASE_MODEL, ())]
        threads, said = int(about["threads"]), {name: str(text) for name, text in faults.items()}
        texts = {name: about[name] for name in ("machine", "system", "runtime", "provider")}
        device = about["name"]
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise AnswerError(f"answer '{path}' is damaged: {first_line(error)}", hint=RUN_AGAIN) from error
    given = _by_case(path, tensors, manifest, said)
    kernels = tuple(
        _kernel(case, read_tensors(folder, case), given[case.name], said.get(case.name, ""))
        for case in manifest.kernels
    )
    whole = manifest.cases[0]
    fault = said.get(whole.name, "")
    outputs = () if fault else tuple(_outputs(path, read_tensors(folder, whole), given[whole.name]))
    return DeviceAnswer(
        file=str(path),
        device=device,
        **texts,
        threads=threads,
        seconds=statistics.median(times) if times else None,
        emulated=about.get("emulated") == "true",
        kernels=kernels,
        outputs=outputs,
        fault=fault,
    )


def _unpacked(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    content = read_file(path, "answer")
    try:
        tensors = load(content)
        length = int.from_bytes(content[:8], "little")
        about = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    except (SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise AnswerError(
            f"answer '{path}' is damaged or cut off: {first_line(error)}", hint=RUN_AGAIN
        ) from error
    if about.get("format") != _FORMAT or about.get("format_version") != _VERSION:
        raise AnswerError(
            f"'{path}' is not an answer of version {_VERSION} of the runners",
            hint="pass the file that run.py, run.mjs or index.html of the cases wrote",
        )
    return tensors, about


def _require_same_cases(path: Path, about: Mapping[str, str], manifest: Manifest) -> None:
    if about.get("model_sha256") != manifest.model_sha256:
        raise OtherCasesError(
            f"answer '{path}' is of another version of the model: {str(about.get('model_sha256'))[:12]}, and "
            f"the cases hold {manifest.model_sha256[:12]}",
            hint="copy these cases to the device, and run them again",
        )
    if about.get("id") != manifest.id:
        raise OtherCasesError(
            f"answer '{path}' is to other cases of this model",
            hint="pass the folder that the device ran, or run this one there",
        )


def _by_case(
    path: Path, tensors: Mapping[str, Array], manifest: Manifest, faults: Mapping[str, str]
) -> dict[str, list[dict[str, Array]]]:
    """The outputs of each run of each case; none may be missing that has no fault."""
    found: dict[str, list[dict[str, Array]]] = {}
    for case in manifest.cases:
        found[case.name] = [{} for _ in range(case.runs)]
    for key, array in tensors.items():
        name, run, output = [*key.split(":", 2), "", ""][:3]
        if name not in found or not run.isdecimal() or int(run) >= len(found[name]):
            raise AnswerError(f"answer '{path}' has '{key[:80]}', which is not a case", hint=RUN_AGAIN)
        found[name][int(run)][output] = array
    missing = [name for name, runs in found.items() if name not in faults and not all(runs)]
    if missing:
        raise AnswerError(
            f"answer '{path}' lacks {len(missing)} of {len(found)} cases: {', '.join(missing[:3])}",
            hint=RUN_AGAIN,
        )
    return found


def _kernel(case: Case, runs: _Runs, given: Sequence[Mapping[str, Array]], fault: str) -> DeviceKernel:
    differing = values = 0
    steps = 0.0
    for run, outputs in zip(runs, given, strict=True):
        for name, expected in run.get(CASE_OUTPUT, {}).items():
            found, tolerance = outputs.get(name), run[CASE_TOLERANCE][name].astype(np.float64)
            values += expected.size
            if fault or found is None or found.shape != expected.shape or found.dtype != expected.dtype:
                fault = fault or f"it gave no {expected.dtype}{format_shape(expected.shape)}"
                continue
            apart = np.abs(found.astype(np.float64) - expected.astype(np.float64))
            differing += int(np.count_nonzero(~(apart <= tolerance)))
            step = tolerance * QUARTERS if expected.dtype.kind == "f" else 1.0
            # A NaN is infinitely many steps off, which Python's max would not see.
            steps = max(steps, float(np.max(np.nan_to_num(apart / step, nan=math.inf), initial=0.0)))
    return DeviceKernel(
        name=case.name,
        node=case.node,
        op=case.op,
        differing=values if fault else differing,
        values=values,
        steps=steps,
        fault=fault,
    )


def _outputs(path: Path, runs: _Runs, given: Sequence[Mapping[str, Array]]) -> Iterator[DeviceOutput]:
    """Yield each float output of the whole file, over all runs."""
    for name in sorted(runs[0].get(CASE_REFERENCE, {})):
        here, there, reference = [], [], []
        for run, outputs in zip(runs, given, strict=True):
            found, expected = outputs.get(name), run[CASE_OUTPUT][name]
            if found is None or found.shape != expected.shape:
                shape = "nothing" if found is None else format_shape(found.shape)
                raise AnswerError(
                    f"answer '{path}' has {shape} for output '{name}', "
                    f"expected {format_shape(expected.shape)}",
                    hint=RUN_AGAIN,
                )
            if np.isnan(found).any() and not np.isnan(expected).any():
                raise AnswerError(
                    f"answer '{path}' has NaN in output '{name}', where none is expected",
                    hint="try another provider of the runtime, or an update of it",
                )
            there.append(found.astype(np.float64))
            here.append(expected.astype(np.float64))
            reference.append(run[CASE_REFERENCE][name].astype(np.float64))
        yield DeviceOutput(
            output=name,
            sqnr_db=_sqnr(reference, there),
            expected_sqnr_db=_sqnr(reference, here),
            top1_agreement=_agreement(reference, there),
            expected_top1_agreement=_agreement(reference, here),
        )


def _sqnr(reference: Sequence[Array], found: Sequence[Array]) -> float:
    """The SQNR over all runs, of values that are finite in the reference."""
    metric = Sqnr()
    for one, other in zip(reference, found, strict=True):
        counted = np.isfinite(one)
        metric.update(one[counted][None], other[counted][None])
    return metric.compute()


def _agreement(reference: Sequence[Array], found: Sequence[Array]) -> float | None:
    if any(one.ndim == 0 or one.shape[-1] < 2 or not one.size for one in reference):
        return None
    metric = Top1Agreement()
    for one, other in zip(reference, found, strict=True):
        metric.update(one.reshape(-1, one.shape[-1]), other.reshape(-1, one.shape[-1]))
    return metric.compute()


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

    Edge case: A run without a report of this model is left as it is.
    """
    files = page_with_devices(found, run)
    write_together(files)
    return tuple(files)
