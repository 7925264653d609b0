"""Recovery beside AIMET's AdaRound, NNCF's compression of weights, and auto-round: time, memory, quality.

python -m benchmarks.peers DIR --aimet PYTHON              the CNN sample, W4A8
python -m benchmarks.peers DIR --nncf PYTHON               the language model sample, W4 in blocks
python -m benchmarks.peers DIR --nncf PYTHON --network FOLDER [--auto-round PYTHON --transformers MODEL]
python -m benchmarks.peers DIR … --write                   also write benchmarks/RESULTS.md

PYTHON is one into which the peer was installed:

    pip install aimet-onnx==2.42.0 onnxruntime==1.31.1
    pip install nncf==3.4.0 openvino==2026.4.1
    pip install auto-round==0.16.1 transformers==5.23.0 gguf==0.19.0 accelerate

FOLDER has another language model in ``model.onnx``, ``calib.npz`` and ``eval.npz``, as for
``benchmarks.zoo``, and MODEL is the same as a folder of transformers or a GGUF file, from which auto-round
starts. What DIR has from an earlier run is not measured again. Each command runs alone on one core, from the
start of Python to the file, and the same data calibrate all.
"""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.language import SAMPLE
from benchmarks.peers.language import language_report
from benchmarks.peers.vision import vision_report
from benchmarks.results_page import print_part, result_parser

STEPS, ROUNDS, SAMPLES, JUDGED = 2000, 200, 128, 256


def main() -> None:
    """Parse the arguments, measure, and print or write the tables."""
    parser = result_parser("Compare recovery with other makers' quantizers.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    for name in ("aimet", "nncf", "auto-round"):
        parser.add_argument(f"--{name}", type=Path, metavar="PYTHON")
    parser.add_argument("--network", type=Path, metavar="FOLDER", help="of a language model")
    parser.add_argument(
        "--transformers", type=Path, metavar="MODEL", help="the language model for auto-round"
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="of AdaRound for each layer")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of auto-round for each block")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="sequences to calibrate with")
    parser.add_argument("--judged", type=int, default=JUDGED, help="sequences to evaluate with, at most")
    arguments = parser.parse_args()
    if arguments.auto_round and not (arguments.network and arguments.transformers):
        parser.error("auto-round needs --network and --transformers")
    folder = arguments.folder.resolve()
    reports: dict[str, Iterator[str]] = {}
    if arguments.aimet:
        reports["peers"] = vision_report(folder / "cnn", arguments.aimet, arguments.steps)
    if arguments.network:
        reports["peers_folder"] = language_report(folder / arguments.network.name, arguments)
    elif arguments.nncf:
        reports["peers_language"] = language_report(folder / SAMPLE.name, arguments)
    for part, report in reports.items():
        print_part(part, report, write=arguments.write)


if __name__ == "__main__":
    main()
