"""Proofs and measurements of model files, from Python: ``verify``, here and on devices, and ``bench``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack, cast

from ptq_cli.api.own_words import in_own_words
from ptq_cli.api.requests import ModelLike, PathLike, as_model_path, onnx_file, request_of
from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.devices.device_answers import run_answers, write_answers
from ptq_cli.devices.run_cases import PACKED_SAMPLES, PackedCases, run_pack
from ptq_cli.evaluation.document.device_document import DeviceAnswers
from ptq_cli.evaluation.verification import KERNEL_STEPS, Verification
from ptq_cli.latency.run_bench import BenchOptions, BenchResult, run_bench
from ptq_cli.pipeline.run_verify import VerifyOptions, run_verify
from ptq_cli.receipts.run_rederive import GivenParts, Rederivation, run_rederive
from ptq_cli.recipe.keyword_settings import Settings, SharedSettings
from ptq_cli.setup.run_directory import DEFAULT_RUN, RunDirectory


@in_own_words
def verify(
    model: ModelLike | None = None,
    *,
    run: PathLike = DEFAULT_RUN,
    min_integer_share: float | None = None,
    random_inputs: bool = False,
    max_kernel_steps: float = KERNEL_STEPS,
    recipe: PathLike | None = None,
    preset: str | None = None,
    progress: ProgressCallback = silent,
    **settings: Unpack[Settings],
) -> Verification:
    """Which operators of a quantized model run in integers, and what breaks its target's rules.

    A broken rule, a share that is too small or a wrong kernel raises nothing: see ``result.verdict``.

    Args:
        model: any ONNX file with Q/DQ; None for the one in the run directory.
        run: the run directory.
        min_integer_share: the least share of the multiply-accumulates in integers, 0 to 1.
        random_inputs: compare outputs on generated inputs if there are no data.
        max_kernel_steps: how many steps of 8 bits a kernel of ONNX Runtime may differ from its operators as
            written, on the same integers.
        recipe: a recipe file.
        preset: a preset, which the recipe file overrides.
        progress: is called as the work proceeds.
        settings: ``target``, ``data``, ``threads`` and others.

    Raises:
        PtqError: the model, the recipe or the data cannot be used.

    Example:
        >>> verify("model_int8.onnx", min_integer_share=0.95).verdict  # doctest: +SKIP
        'pass'
    """
    request = request_of(settings, None, recipe, preset)
    options = VerifyOptions(min_integer_share, random_inputs, max_kernel_steps)
    return run_verify(request, RunDirectory(Path(run)), as_model_path(model), options, progress)


@in_own_words
def rederive(
    model: PathLike | None = None,
    *,
    run: PathLike = DEFAULT_RUN,
    float_model: PathLike | None = None,
    statistics: PathLike | None = None,
    recipe: PathLike | None = None,
    data: PathLike | None = None,
    progress: ProgressCallback = silent,
) -> Rederivation:
    """Make a quantized file again from what the statement beside it names, and compare the bytes.

    Other bytes, and a statement that is wrong, raise nothing: see ``result.verdict``.

    Args:
        model: a file that ``export`` wrote; None for the one in the run directory.
        run: the run directory.
        float_model: the prepared float model; None for that of the run.
        statistics: the calibration; None for that of the run.
        recipe: the recipe; None for the one in the statement.
        data: calibration data, needed only where running models decided something; None for the recipe's.
        progress: is called as the work proceeds.

    Raises:
        PtqError: there is no statement, or something that cannot be repeated here decided the file.

    Example:
        >>> rederive("model_int8.onnx").verdict  # doctest: +SKIP
        'pass'
    """
    parts = [Path(part) if part is not None else None for part in (float_model, statistics, recipe, data)]
    given = GivenParts(float_model=parts[0], statistics=parts[1], recipe=parts[2], data=parts[3])
    return run_rederive(RunDirectory(Path(run)), Path(model) if model is not None else None, given, progress)


@in_own_words
def pack_cases(
    cases: PathLike,
    model: ModelLike | None = None,
    *,
    run: PathLike = DEFAULT_RUN,
    random_inputs: bool = False,
    recipe: PathLike | None = None,
    preset: str | None = None,
    progress: ProgressCallback = silent,
    **settings: Unpack[Settings],
) -> PackedCases:
    """Write a folder that shows on a device without ptq what a quantized model computes there.

    Args:
        cases: the folder; earlier cases in it are replaced.
        model: as for ``verify``.
        run: the run directory.
        random_inputs: generate inputs if there are no data.
        recipe: a recipe file.
        preset: a preset, which the recipe file overrides.
        progress: is called as the work proceeds.
        settings: ``samples`` (runs of the whole model; 8 if not given), ``data``, ``target`` and others.

    Raises:
        PtqError: the model, the recipe or the data cannot be used, or the folder cannot be written.

    Example:
        >>> len(pack_cases("cases", "model_int8.onnx").manifest.kernels)  # doctest: +SKIP
        33
    """
    samples = settings.pop("samples", None)
    request = request_of(settings, None, recipe, preset)
    return run_pack(
        request,
        RunDirectory(Path(run)),
        as_model_path(model),
        Path(cases),
        samples=PACKED_SAMPLES if samples is None else samples,
        made_up=random_inputs,
        progress=progress,
    )


@in_own_words
def compare_answers(
    answers: PathLike,
    cases: PathLike,
    *,
    run: PathLike = DEFAULT_RUN,
    min_exact_kernels: float | None = None,
    min: Mapping[str, float] | None = None,
    progress: ProgressCallback = silent,
) -> DeviceAnswers:
    """Answers of devices, compared with the results that cases expect.

    A missed limit raises nothing: see ``result.verdict``.

    Args:
        answers: a file that a device wrote, or a folder of such files.
        cases: the folder that the devices ran.
        run: the run directory; its page shows the result if it has a report of this model.
        min_exact_kernels: the least share of exact kernels of each device, 0 to 1.
        min: the least ``sqnr_db`` or ``top1_agreement`` of each device.
        progress: is called for each answer.

    Raises:
        PtqError: the folder or an answer is damaged, or they do not belong together.

    Example:
        >>> compare_answers("answers", "cases").devices[0].exact_share  # doctest: +SKIP
        1.0
    """
    found = run_answers(
        Path(answers), Path(cases), min_exact_kernels=min_exact_kernels, minimum=min or {}, progress=progress
    )
    write_answers(found, RunDirectory(Path(run)))
    return found


@in_own_words
def bench(
    *models: ModelLike,
    run: PathLike = DEFAULT_RUN,
    batch: int | Sequence[int] | None = None,
    threads: int | Sequence[int] | None = None,
    seconds: float = 10.0,
    runs: int | None = None,
    profile: bool = False,
    runtime: str | Sequence[str] = (),
    accuracy_level: int | Sequence[int] | None = None,
    recipe: PathLike | None = None,
    preset: str | None = None,
    progress: ProgressCallback = silent,
    **settings: Unpack[SharedSettings],
) -> BenchResult:
    """The latency of models that take turns, with the ratios to the first model.

    Args:
        models: ONNX files with the same inputs; none for the two in the run directory.
        run: the run directory.
        batch: samples per run, one or several sizes; None for one, or for the size that the models fix.
        threads: of one operator, one or several numbers; 0 for one per core. None for that of the recipe.
        seconds: about how long to measure each batch size with each number of threads.
        runs: how many runs of each model to count, instead of ``seconds``.
        profile: also measure how long each operator takes.
        runtime: ``"onnxruntime"``, ``"openvino"`` or both; none for that of the target that the models were
            quantized for.
        accuracy_level: of ONNX Runtime's kernel for weights in blocks, one or several; None for 4 and 0 if a
            model has such weights.
        recipe: a recipe file.
        preset: a preset, which the recipe file overrides.
        progress: is called after each turn.
        settings: ``data``, ``input_shape`` and others.

    Returns:
        A scenario for each runtime, batch size and number of threads, in that order; ``latency`` is the first
        one's.

    Raises:
        PtqError: a model or the data cannot be used.

    Example:
        >>> bench("float.onnx", "int8.onnx", threads=1).latency.ratios[0].speed_up  # doctest: +SKIP
        2.1
        >>> found = bench("float.onnx", "int8.onnx", batch=[1, 8], profile=True)  # doctest: +SKIP
        >>> [item.latency.ratios[0].speed_up for item in found.scenarios]  # doctest: +SKIP
        [1.42, 1.85]
    """
    request = request_of(cast("Settings", settings), None, recipe, preset)
    paths = [onnx_file(model) for model in models]
    options = BenchOptions(
        batches=_numbers(batch),
        threads=_numbers(threads),
        seconds=seconds,
        runs=runs,
        profile=profile,
        runtimes=(runtime,) if isinstance(runtime, str) else tuple(runtime),
        accuracy_levels=_numbers(accuracy_level),
    )
    return run_bench(request, RunDirectory(Path(run)), paths, options, progress)


def _numbers(value: int | Sequence[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
