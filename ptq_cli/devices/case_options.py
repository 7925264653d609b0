"""Options of ``ptq verify`` for devices where ptq is not installed."""

from pathlib import Path

from ptq_cli.terminal.options.help_sections import DATA, ELSEWHERE, EVALUATION, option
from ptq_cli.terminal.options.shared_options import PATH

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
    pack: Path | None, answers: Path | None, *, model: Path | None, samples: int | None, limited: bool
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
