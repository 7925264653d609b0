"""Recovery beside AIMET's AdaRound, NNCF's compression of weights, and auto-round: time, memory, quality.

python -m benchmarks.peers DIR --aimet PYTHON                           the CNN sample, W4A8
python -m benchmarks.peers DIR --network FOLDER --nncf PYTHON --auto-round PYTHON --gguf FILE
                                                                        a language model, W4 in blocks
python -m benchmarks.peers DIR … --write                                also write benchmarks/RESULTS.md

PYTHON is one into which the peer was installed; without it, the peer is left out:

    pip install aimet-onnx==2.42.0 onnxruntime==1.31.1
    pip install nncf==3.4.0 openvino==2026.4.1
    pip install auto-round==0.16.1 transformers==5.23.0 gguf==0.19.0 accelerate

FOLDER has ``model.onnx``, ``calib.npz`` and ``eval.npz``, as for ``benchmarks.zoo``; FILE is the same network
for transformers. What DIR has from an earlier run is not measured again. Each command runs alone on one core,
from the start of Python to the file; the same data calibrate all, and one judge runs all files.
"""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers.language import language_report
from benchmarks.peers.vision import vision_report
from benchmarks.results_page import print_part, result_parser

STEPS, ROUNDS, SAMPLES = 2000, 200, 16


def main() -> None:
    """Parse the arguments, measure, and print or write the tables."""
    parser = result_parser("Compare recovery with other makers' quantizers.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    for name in ("aimet", "nncf", "auto-round"):
        parser.add_argument(f"--{name}", type=Path, metavar="PYTHON")
    parser.add_argument("--network", type=Path, metavar="FOLDER", help="of a language model")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="the language model for transformers")
    parser.add_argument("--steps", type=int, default=STEPS, help="of AdaRound for each layer")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of auto-round for each block")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="sequences to calibrate with")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    reports: dict[str, Iterator[str]] = {}
    if arguments.aimet:
        reports["peers"] = vision_report(folder / "cnn", arguments.aimet, arguments.steps)
    if arguments.network:
        reports["peers_language"] = language_report(folder / "lm", arguments)
    for part, report in reports.items():
        print_part(part, report, write=arguments.write)


if __name__ == "__main__":
    main()
