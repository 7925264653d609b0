"""``ptq verify``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptq_cli.devices.case_options import CASES, require_one_use
from ptq_cli.receipts.receipt_options import RECEIPT
from ptq_cli.terminal.options.help_sections import DATA, OWN, SectionCommand, option
from ptq_cli.terminal.options.model_options import (
    ENGINE,
    MODEL_ARGUMENT,
    PORTABLE,
    data_option,
    target_option,
)
from ptq_cli.terminal.options.shared_options import (
    GLOBALS,
    RECIPES,
    RUN,
    refuse_options,
    request_from,
    take,
)

if TYPE_CHECKING:
    from ptq_cli.setup.resolve import Request


# Parameters that say how a file is proven, or what a device is given; --rederive takes all from the recipe.
NOT_REDERIVED = (
    *("min_integer_share", "max_kernel_steps", "show_all", "random_inputs", "target", "pack", "samples"),
    *("answers", "min_exact_kernels", "minimum", "require_portable", "engine", "preset", "assignments"),
)


@click.command(
    cls=SectionCommand,
    short_help="Check which operators run in integers.",
    epilog="""\b
Examples:
  ptq verify
  ptq verify model_int8.onnx --target ort-cpu --min-integer-share 0.95
  ptq verify theirs.onnx --target tensorrt --random-inputs --json
  ptq verify exported_q4/ --random-inputs
  ptq verify --pack cases
  ptq verify --rederive ptq-run/model_int8.onnx

Exits with status 3 if a rule of the target is broken, if the share is too small, or if a kernel computes
something else than its operators, or may do so on this processor.
""",
)
@option(
    OWN,
    "--min-integer-share",
    type=float,
    metavar="X",
    help="Exit with status 3 if a smaller share of the multiply-accumulates is in integers: 0.95.",
)
@option(
    OWN,
    "--max-kernel-steps",
    type=float,
    default=2.0,
    show_default=True,
    metavar="N",
    help="Exit with status 3 if an integer kernel alone differs by more than N steps from its operators.",
)
@option(OWN, "--all", "show_all", is_flag=True, help="List every operator, not only those that run in float.")
@data_option("Data to compare the outputs on.  [default: the recipe's data]")
@option(
    DATA, "--random-inputs", is_flag=True, help="Compare the outputs on random inputs if there are no data."
)
@target_option("the target that the file was made for")
@take(RECEIPT, CASES, PORTABLE, MODEL_ARGUMENT, ENGINE, RUN, RECIPES, GLOBALS)
def command(
    model: Path | None,
    run: Path,
    min_integer_share: float | None,
    random_inputs: bool,
    max_kernel_steps: float,
    show_all: bool,
    as_json: bool,
    pack: Path | None,
    samples: int | None,
    answers: Path | None,
    min_exact_kernels: float | None,
    minimum: tuple[str, ...],
    rederive: bool,
    float_model: Path | None,
    statistics: Path | None,
    **options: Any,
) -> int:
    """Check which operators of MODEL run in integers.

    MODEL is an ONNX file with QuantizeLinear and DequantizeLinear, by default the quantized model of the run
    directory. ONNX Runtime optimizes it. For each operator, the result says whether it became an integer
    kernel, and which rule of the target explains that. The share of multiply-accumulates in integers is
    counted, the target's rules of structure are checked, and the outputs of the optimized model are compared
    with those of the file as it is written. If they differ, --max-kernel-steps decides: each kernel is run
    alone on the integers that it meets in the file, where rounding explains one step of 8 bits.

    For any processor it is counted how many layers can saturate on x86 processors without VNNI, which add two
    products in 16 bits; with --require-portable there may be none.

    If MODEL is a folder, each quantized ONNX file in it is checked.

    --rederive makes MODEL again from the float model, the calibration and the recipe that the statement
    beside it names, and compares the bytes.

    --pack writes cases instead, which a device without ptq runs, and --answers compares what the device gave.
    If the run directory has a report of this model, its page then shows the result.
    """
    from ptq_cli.core.read_files import is_folder
    from ptq_cli.pipeline.run_verify import VerifyOptions, run_verify
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.shown.report_lines import GATE_MISSED
    from ptq_cli.shown.verification_tables import print_verification
    from ptq_cli.terminal.output import print_json
    from ptq_cli.terminal.progress_bar import shown_progress

    if rederive:
        refuse_options(NOT_REDERIVED, "is not for --rederive", "leave it out")
        return _rederive(run, model, options, float_model, statistics, as_json=as_json)
    refuse_options(("float_model", "statistics"), "is for --rederive", "ptq verify --rederive FILE")
    limited = bool(minimum) or min_exact_kernels is not None
    require_one_use(pack, answers, model=model, samples=samples, limited=limited)
    if answers is not None and model is not None:
        return _compare_answers(answers, model, run, min_exact_kernels, minimum, as_json=as_json)
    request = request_from(options)
    if pack is not None:
        return _pack(request, run, model, pack, samples, made_up=random_inputs, as_json=as_json)
    asked = VerifyOptions(min_integer_share, random_inputs, max_kernel_steps)
    if model is not None and is_folder(model):
        from ptq_cli.folders.evaluate_folder import VerifiedFolder, run_verify_folder

        with shown_progress() as progress:
            results = run_verify_folder(request, RunDirectory(run), model, asked, progress)
        if as_json:
            print_json(VerifiedFolder(tuple(results)))
        else:
            for item in results:
                print_verification(item, show_all=show_all)
        return 0 if all(item.verdict == "pass" for item in results) else GATE_MISSED
    with shown_progress() as progress:
        result = run_verify(request, RunDirectory(run), model, asked, progress)
    if as_json:
        print_json(result)
    else:
        print_verification(result, show_all=show_all)
    return 0 if result.verdict == "pass" else GATE_MISSED


def _rederive(
    run: Path,
    model: Path | None,
    options: dict[str, Any],
    float_model: Path | None,
    statistics: Path | None,
    *,
    as_json: bool,
) -> int:
    from ptq_cli.receipts.receipt_lines import print_rederivation
    from ptq_cli.receipts.run_rederive import GivenParts, run_rederive
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.shown.report_lines import GATE_MISSED
    from ptq_cli.terminal.output import print_json
    from ptq_cli.terminal.progress_bar import shown_progress

    data = options.get("data")
    given = GivenParts(
        float_model=float_model,
        statistics=statistics,
        recipe=options.get("recipe"),
        data=Path(data) if data is not None else None,
    )
    with shown_progress() as progress:
        result = run_rederive(RunDirectory(run), model, given, progress)
    (print_json if as_json else print_rederivation)(result)
    return 0 if result.verdict == "pass" else GATE_MISSED


def _pack(
    request: "Request",
    run: Path,
    model: Path | None,
    cases: Path,
    samples: int | None,
    *,
    made_up: bool,
    as_json: bool,
) -> int:
    from ptq_cli.devices.case_tables import print_packed
    from ptq_cli.devices.run_cases import PACKED_SAMPLES, run_pack
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.terminal.output import print_json
    from ptq_cli.terminal.progress_bar import shown_progress

    count = PACKED_SAMPLES if samples is None else samples
    with shown_progress() as progress:
        packed = run_pack(
            request, RunDirectory(run), model, cases, samples=count, made_up=made_up, progress=progress
        )
    (print_json if as_json else print_packed)(packed)
    return 0


def _compare_answers(
    answers: Path,
    cases: Path,
    run: Path,
    min_exact_kernels: float | None,
    minimum: tuple[str, ...],
    *,
    as_json: bool,
) -> int:
    from ptq_cli.devices.case_tables import print_answers
    from ptq_cli.devices.device_answers import run_answers, write_answers
    from ptq_cli.evaluation.limits import MIN_FLAG, parse_limits
    from ptq_cli.report.text.markdown import answers_to_markdown
    from ptq_cli.setup.run_directory import RunDirectory
    from ptq_cli.shown.report_lines import GATE_MISSED
    from ptq_cli.terminal.output import add_to_step_summary, print_json
    from ptq_cli.terminal.progress_bar import shown_progress

    limits = {metric: float(limit) for metric, limit in parse_limits(minimum, MIN_FLAG).items()}
    with shown_progress() as progress:
        result = run_answers(
            answers, cases, min_exact_kernels=min_exact_kernels, minimum=limits, progress=progress
        )
    written = write_answers(result, RunDirectory(run))
    add_to_step_summary(answers_to_markdown(result))
    if as_json:
        print_json(result)
    else:
        print_answers(result, written)
    return GATE_MISSED if result.verdict == "fail" else 0
