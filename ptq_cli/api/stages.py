"""The stages from Python: calibrate, merge, export, quantize, prepare."""

from pathlib import Path
from typing import Unpack

from ptq_cli.api.own_words import in_own_words
from ptq_cli.api.requests import ModelLike, PathLike, as_path, request_of
from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.folders.quantize_folder import FolderResult, run_quantize_folder
from ptq_cli.pipeline.run_calibrate import CalibrationResult, run_calibrate
from ptq_cli.pipeline.run_export import ExportResult, run_export
from ptq_cli.pipeline.run_merge import MergeResult, run_merge
from ptq_cli.pipeline.run_prepare import PrepareResult, run_prepare
from ptq_cli.pipeline.run_quantize import QuantizationResult, run_quantize
from ptq_cli.recipe.assignments import Once
from ptq_cli.recipe.keyword_settings import Settings
from ptq_cli.setup.run_directory import DEFAULT_RUN, RunDirectory


@in_own_words
def calibrate(
    model: ModelLike | None = None,
    *,
    run: PathLike = DEFAULT_RUN,
    recipe: PathLike | None = None,
    preset: str | None = None,
    shard: str | None = None,
    restart: bool = False,
    progress: ProgressCallback = silent,
    **settings: Unpack[Settings],
) -> CalibrationResult:
    """Run the calibration set through the model once, and keep statistics of every tensor to be quantized.

    Writes ``model.float.onnx``, ``calibration.safetensors`` and ``recipe.toml`` into the run directory.

    Args:
        model: the file of a state dict (with ``arch``), .pt2, TorchScript, ONNX; or a ``torch.nn.Module``, an
            ``onnx.ModelProto`` or an ``onnx_ir.Model``; None takes it from the recipe.
        run: the run directory.
        recipe: a recipe file, which overrides ``./ptq.toml``.
        preset: a preset, which both files override.
        shard: ``"2/8"`` to run the second of eight shares of the batches; ``merge`` combines them.
        restart: start from the beginning even if an earlier calibration could be continued.
        progress: is called after each batch.
        settings: any setting of the recipe, by the name of its flag. ``data`` is a path, an array, a dict of
            arrays, a DataLoader or another iterable of batches, or a function that returns one.

    Raises:
        PtqError: the recipe, the model or the data cannot be used; then only checkpoints were written.

    Example:
        >>> result = calibrate("model.pt", arch="model.py:build", data="calib.npz")  # doctest: +SKIP
        >>> result.samples  # doctest: +SKIP
        512
    """
    request = request_of(settings, model, recipe, preset)
    return run_calibrate(request, RunDirectory(Path(run)), progress, shard=shard, restart=restart)


@in_own_words
def merge(*runs: PathLike, run: PathLike = DEFAULT_RUN, partial: bool = False) -> MergeResult:
    """Combine the runs of several shards into the same bytes as one calibration of the whole set.

    Whole calibrations of one model on different data become one that has the statistics of all.

    Args:
        runs: run directories that ``calibrate`` wrote with ``shard``, in any order; or whole calibrations, of
            which the first one's other settings are kept.
        run: the run directory of the result.
        partial: allow shards to be missing; the result can then be merged with further shards.

    Raises:
        PtqError: the runs are not shards of one calibration, overlap, or a shard is missing.
    """
    return run_merge([RunDirectory(Path(path)) for path in runs], RunDirectory(Path(run)), partial=partial)


@in_own_words
def export(
    *,
    run: PathLike = DEFAULT_RUN,
    output: PathLike | None = None,
    reset: bool = False,
    restart: bool = False,
    context: PathLike | None = None,
    recipe: PathLike | None = None,
    preset: str | None = None,
    progress: ProgressCallback = silent,
    **settings: Unpack[Settings],
) -> ExportResult:
    """Decide scales from the saved statistics, and write the quantized ONNX model.

    Args:
        run: the run directory of the calibration.
        output: the output file; None for the run directory. With another file,
            later calls do not take over these settings.
        reset: leave out the settings of earlier exports that the run's ``recipe.toml`` holds.
        restart: start from the beginning even if an interrupted recovery could be continued.
        context: where to write what the compiler of Qualcomm's HTP makes of it, for target qnn.
        recipe: a recipe file.
        preset: a preset, which the recipe file overrides.
        progress: is called as the work of ``recover`` proceeds.
        settings: ``amax`` and ``percentile`` may change from call to call; settings that the statistics
            depend on must be the same as in the calibration.

    Raises:
        PtqError: nothing was calibrated, or the calibration does not fit.
    """
    request = request_of(settings, None, recipe, preset)
    where, compiled = RunDirectory(Path(run)), as_path(context)
    return run_export(
        request, where, as_path(output), reset=reset, restart=restart, context=compiled, progress=progress
    )


@in_own_words
def quantize(
    model: ModelLike | None = None,
    *,
    run: PathLike = DEFAULT_RUN,
    output: PathLike | None = None,
    evaluate: bool | None = None,
    restart: bool = False,
    recipe: PathLike | None = None,
    preset: str | None = None,
    progress: ProgressCallback = silent,
    **settings: Unpack[Settings],
) -> QuantizationResult:
    """Calibrate, export and, if asked to, evaluate; all files are written at the end, or none.

    Args:
        model: as for ``calibrate``.
        run: the run directory.
        output: file of the quantized model.
        evaluate: whether to evaluate; None evaluates if a limit is set, or if ``eval_data``, ``metric`` or
            another setting of the evaluation is given.
        restart: start from the beginning even if an earlier calibration could be continued.
        recipe: a recipe file.
        preset: a preset, which the recipe file overrides.
        progress: is called after each batch.
        settings: any setting of the recipe, by the name of its flag.

    Raises:
        PtqError: as the three stages do.
    """
    request = request_of(settings, model, recipe, preset)
    once = Once(restart=restart, evaluate=evaluate)
    return run_quantize(request, RunDirectory(Path(run)), as_path(output), once, progress)


@in_own_words
def quantize_folder(
    folder: PathLike,
    *,
    run: PathLike = DEFAULT_RUN,
    output: PathLike | None = None,
    for_hub: bool = False,
    evaluate: bool | None = None,
    restart: bool = False,
    recipe: PathLike | None = None,
    preset: str | None = None,
    progress: ProgressCallback = silent,
    **settings: Unpack[Settings],
) -> FolderResult:
    """Quantize each ONNX file of a folder, such as an export of Optimum; all files are written at the end.

    Of a folder with ``config.json`` and ``model.safetensors`` alone, transformers builds the encoder.

    Args:
        folder: where the float models are, with their configurations and tokenizers.
        run: the run directory, in which each file has one of its own.
        output: the folder of the quantized models; None for ``export`` in the run directory.
        for_hub: write a folder as on the hub, with ``onnx/model_quantized.onnx``; ``folder`` may be a file.
        evaluate: as for ``quantize``; files without evaluation data are not evaluated.
        restart: start from the beginning even if earlier calibrations could be continued.
        recipe: a recipe file.
        preset: a preset, which the recipe file overrides.
        progress: is called after each batch.
        settings: any setting of the recipe, by the name of its flag. ``data`` and ``eval_data`` are for all
            files, or folders with a file of each model's name.

    Raises:
        ModelFolderError: the folder holds no float ONNX files.
        PtqError: as ``quantize`` does; the message names the file.

    Example:
        >>> result = quantize_folder("exported", preset="w4_block32")  # doctest: +SKIP
        >>> [item.output.name for item in result.files]  # doctest: +SKIP
        ['encoder_model_q4.onnx', 'decoder_model_merged_q4.onnx']
    """
    request = request_of(settings, Path(folder), recipe, preset)
    once = Once(restart=restart, evaluate=evaluate)
    place = RunDirectory(Path(run))
    return run_quantize_folder(request, place, as_path(output), once, progress, for_hub=for_hub)


@in_own_words
def prepare(
    model: ModelLike | None = None,
    *,
    output: PathLike,
    recipe: PathLike | None = None,
    preset: str | None = None,
    **settings: Unpack[Settings],
) -> PrepareResult:
    """Write the float ONNX graph that calibration would measure, and return how it was made.

    Args:
        model: as for ``calibrate``.
        output: the output file.
        recipe: a recipe file.
        preset: a preset, which the recipe file overrides.
        settings: ``arch``, ``data`` or ``input_shape`` and others.

    Raises:
        PtqError: the model cannot be opened, exported or prepared, or the file cannot be written.
    """
    return run_prepare(request_of(settings, model, recipe, preset), Path(output))
