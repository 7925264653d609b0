"""Options of ``ptq verify`` for a file that is made again."""

from ptq_cli.terminal.options.help_sections import OWN, option
from ptq_cli.terminal.options.shared_options import PATH

RECEIPT = (
    option(
        OWN,
        "--rederive",
        is_flag=True,
        help="Make the file again from what its statement names; exit with status 3 if anything differs.",
    ),
    option(
        OWN,
        "--float",
        "float_model",
        type=PATH,
        metavar="MODEL",
        help="With --rederive: the float model.  [default: RUN/model.float.onnx]",
    ),
    option(
        OWN,
        "--statistics",
        type=PATH,
        metavar="FILE",
        help="With --rederive: the calibration.  [default: RUN/calibration.safetensors]",
    ),
)
