"""How errors of int8 models that feed themselves grow from step to step.

python -m benchmarks.streams            a GRU and the sample's decoder over 512 steps
python -m benchmarks.streams DIR        also Silero VAD: DIR has silero_vad.onnx, and sounds in calib and eval
python -m benchmarks.streams --write    also write them to benchmarks/RESULTS.md

Sounds are ``.npz`` files of an array ``input`` at 16 kHz, a recording each.
"""

import contextlib
import io
import json
import shlex
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import nn

from benchmarks.results_page import print_part, processor, result_parser
from ptq_cli.cli.main import run
from ptq_cli.core.tensors import Array
from ptq_cli.setup.run_directory import RunDirectory

STEPS, RECORDINGS, WINDOW = 512, 8, 128
SHOWN = (0, 8, 16, 32, 64, 128, 192, 256, 320, 384, 448, 511)
SAMPLE = Path(__file__).parents[1] / "sample_models" / "shakespeare_language_model"
GRU = "model.onnx --data calib.npz --eval-data eval.npz"
DECODER = (
    "decoder_with_past_model.onnx --data calib.txt --eval-data eval.txt --set text.tokenizer=tokenizer.json "
    f"--set text.window={STEPS} --set 'data.carry.present.*=past_key_values.*'"
)
FEATURES, HIDDEN = 32, 96
FRAME, OVERLAP, RATE = 512, 64, 16000
VAD = "--set model.inputs.sr=16000 --set data.frame=576,512"
VARIANTS = (
    f"quantize MODEL --data calib {VAD}",
    f"quantize MODEL --data calib {VAD} --recover all",
    f"quantize MODEL --data calib {VAD} --set activations.mode=dynamic",
    f"tune MODEL --data calib {VAD} --budget sqnr_db=25",
)


class Gru(nn.Module):
    """A GRU cell that predicts the next values of a mixture of tones."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.candidate = (nn.Linear(FEATURES + HIDDEN, n * HIDDEN) for n in (2, 1))
        self.head = nn.Linear(HIDDEN, FEATURES)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next values [N, 32] and the next state [N, 96]."""
        reset, update = torch.sigmoid(self.gates(torch.cat([x, h], 1))).chunk(2, 1)
        state = h + update * (torch.tanh(self.candidate(torch.cat([x, reset * h], 1))) - h)
        return self.head(state), state


def tones(random: np.random.Generator, count: int) -> Array:
    """Return mixtures of tones with noise, [count, steps, 32]."""
    time, rates = np.arange(STEPS)[:, None], random.uniform(0.02, 0.6, (count, 1, FEATURES))
    found = np.sin(rates * time + random.uniform(0, 6, (count, 1, FEATURES)))
    mixed = found @ np.random.default_rng(7).standard_normal((FEATURES, FEATURES)) / 6
    return np.asarray(mixed + 0.05 * random.standard_normal(mixed.shape), np.float32)


def trained(model: nn.Module, loss: Callable[[], torch.Tensor], rounds: int) -> nn.Module:
    """Return a model after some rounds of Adam."""
    adam = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(rounds):
        adam.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        adam.step()
    return model.eval()


def make_gru(folder: Path) -> None:
    """Write a GRU and its recordings."""
    torch.manual_seed(0)
    random, model = np.random.default_rng(0), Gru()

    def loss() -> torch.Tensor:
        x = torch.from_numpy(tones(random, 16)[:, :WINDOW])
        state, total = torch.zeros(16, HIDDEN), torch.zeros(())
        for step in range(WINDOW - 1):
            guess, state = model(x[:, step], state)
            total = total + ((guess - x[:, step + 1]) ** 2).mean()
        return total / WINDOW

    trained(model, loss, 120)
    torch.onnx.export(
        model,
        (torch.zeros(2, FEATURES), torch.zeros(2, HIDDEN)),
        str(folder / "model.onnx"),
        input_names=["x", "h"],
        output_names=["y", "h_out"],
        dynamic_axes={name: {0: "batch"} for name in ("x", "h", "y", "h_out")},
        dynamo=False,
    )
    for name in ("calib", "eval"):
        np.savez(folder / f"{name}.npz", x=tones(random, RECORDINGS))


def ptq(words: str) -> None:
    """Run a command silently, which has to end well."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        status = run(shlex.split(words))
    if status:
        raise RuntimeError(f"ptq {words} ended with {status}: {said.getvalue()}")


def curve_of(words: str, folder: Path) -> dict[int, tuple[float, float]]:
    """Return the SQNR at the steps that are shown, on the model's own states and on the float model's."""
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(folder):
        ptq(
            f"quantize {words} --set run.evaluate=true --set evaluation.latency=false --run {place}/run "
            f"--samples {RECORDINGS} --set evaluation.samples={RECORDINGS} --set data.steps={STEPS}"
        )
        curve = json.loads(Path(place, "run", "report.json").read_text("utf-8"))["stream"]["curve"]
    found = {}
    for step in SHOWN:
        point = next(item for item in reversed(curve) if item["step"] <= step)
        found[step] = (float(point["free"]["sqnr_db"]), float(point["forced"]["sqnr_db"]))
    return found


def drift_lines(folder: Path) -> Iterator[str]:
    """Yield a row for each of some steps."""
    make_gru(folder)
    curves = [curve_of(GRU, folder), curve_of(DECODER, SAMPLE)]
    yield (
        f"`python -m benchmarks.streams --write`, {processor()}: SQNR in dB of the first output by step, on "
        f"the model's own states and on the float model's, over {RECORDINGS} recordings of {STEPS} steps. "
        "GRU: a cell that predicts tones. Decoder: the language sample's, over its caches."
    )
    yield ""
    yield "| step | GRU, own states | GRU, float's | decoder, own caches | decoder, float's |"
    yield "|---|---|---|---|---|"
    for step in SHOWN:
        cells = " | ".join(f"{value:.1f}" for curve in curves for value in curve[step])
        yield f"| {step} | {cells} |"


def windows(path: Path, files: list[Path]) -> Array:
    """Return whether a voice is heard in each window of sounds, by a model on its own states."""
    session, heard = onnxruntime.InferenceSession(path), []
    wanted = {item.name for item in session.get_inputs()}
    for file in files:
        state, sound = np.zeros((2, 1, 128), np.float32), np.load(file)["input"]
        padded = np.concatenate([np.zeros(OVERLAP, np.float32), sound])
        for start in range(0, len(sound) - FRAME + 1, FRAME):
            frame = padded[None, start : start + OVERLAP + FRAME]
            given = {"input": frame, "state": state, "sr": np.array(RATE)}
            score, state = session.run(None, {name: given[name] for name in wanted})
            heard.append(score[0, 0] > 0.5)
    return np.array(heard)


def vad_lines(folder: Path) -> Iterator[str]:
    """Yield the share of windows in which int8 models hear a voice where the float model does."""
    model, files = (folder / "silero_vad.onnx").resolve(), sorted((folder / "eval").resolve().glob("*.npz"))
    exact = windows(model, files)
    yield (
        f"`python -m benchmarks.streams DIR --write`, {processor()}: Silero VAD 6.2 from its package, and "
        f"{len(exact):,} windows of spoken digits by speakers that it was not calibrated on. A window agrees "
        "if both models, each on its own states, hear a voice in it, or none."
    )
    yield ""
    yield "| command | windows that agree | size |"
    yield "|---|---|---|"
    for words in VARIANTS:
        with tempfile.TemporaryDirectory() as place, contextlib.chdir(folder):
            ptq(f"{words.replace('MODEL', str(model))} --run {place}/run")
            file = RunDirectory(Path(place, "run")).quantized_model
            share = float(np.mean(windows(file, files) == exact))
            size = file.stat().st_size / model.stat().st_size
        yield f"| `ptq {words.replace('MODEL', 'silero_vad.onnx')}` | {share:.2%} | {size:.0%} |".replace(
            "%", " %"
        )


def main() -> None:
    """Measure, and write what was asked for."""
    parser = result_parser(__doc__ or "")
    parser.add_argument("folder", type=Path, metavar="DIR", nargs="?")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        print_part("streams", drift_lines(Path(place)), write=asked.write)
    if asked.folder is not None:
        print_part("silero", vad_lines(asked.folder), write=asked.write)


if __name__ == "__main__":
    main()
