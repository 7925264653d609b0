"""Log-mel features of spoken digits, one definition for training, calibration and evaluation.

A feature is (log energy - mean of its band over the recording) / SPREAD, rounded to 1/32: subtracting the
mean takes away the microphone and much of the speaker, and rounding lets the shipped arrays compress well.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from model import FRAMES, MELS

SAMPLE_RATE = 8000
WINDOW = 256
HOP = 100
ENERGY_FLOOR = 1e-4
SPREAD = 2.0
ROUNDING = 32
LOWEST_HERTZ = 60.0

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Recordings:
    """Recordings in the order of their file: waveforms in [-1, 1], digits and speakers."""

    waveforms: list[FloatArray]
    labels: npt.NDArray[np.int64]
    speakers: npt.NDArray[np.str_]


def read_npz(path: Path) -> Recordings:
    """Reads an npz with `pcm` int16 (all recordings end to end), `offset`, `label` and `speaker`."""
    with np.load(path, allow_pickle=False) as arrays:
        samples = arrays["pcm"].astype(np.float32) / 32768
        waveforms = np.split(samples, arrays["offset"][1:-1])
        return Recordings(waveforms, arrays["label"].astype(np.int64), arrays["speaker"])


def mel_filterbank(warp: float = 1.0) -> FloatArray:
    """Triangular mel filters [window / 2 + 1, mels], their areas equal to one.

    Args:
        warp: multiplies the frequency axis of the voice: above 1 imitates a shorter vocal tract.
    """
    edges_mel = np.linspace(_hertz_to_mel(LOWEST_HERTZ), _hertz_to_mel(SAMPLE_RATE / 2), MELS + 2)
    edges = 700 * (10 ** (edges_mel / 2595) - 1) / warp
    bins = np.arange(WINDOW // 2 + 1)[:, None] * SAMPLE_RATE / WINDOW
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    triangles = np.clip(np.minimum(rising, falling), 0, None)
    return (triangles / np.maximum(triangles.sum(axis=0), 1e-3)).astype(np.float32)


def log_mel(waveform: FloatArray, filterbank: FloatArray) -> FloatArray:
    """Log-mel features [frames, mels] of a waveform [samples], without padding.

    Energies are relative to the recording's loudest frame, so that loudness does not matter.
    """
    padded = np.pad(waveform, (0, max(0, WINDOW - len(waveform))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
    power = np.abs(np.fft.rfft(frames * np.hanning(WINDOW), axis=1)) ** 2
    energy = power.astype(np.float32) @ filterbank
    log_energy = np.log(energy / max(float(energy.max()), 1e-10) + ENERGY_FLOOR)
    centred = (log_energy - log_energy.mean(axis=0)) / SPREAD
    return (np.round(centred * ROUNDING) / ROUNDING).astype(np.float32)


def pad_or_trim(features: FloatArray, start: int = 0) -> tuple[FloatArray, FloatArray]:
    """Gives features of any length the model's fixed length.

    Args:
        features: [frames, mels].
        start: how many empty frames come first; features that don't fit lose their end.

    Returns:
        Features [FRAMES, mels] with zeros for padding, and the mask [FRAMES], 1 where a frame is speech.
    """
    kept = features[: FRAMES - start]
    padded = np.zeros((FRAMES, MELS), np.float32)
    mask = np.zeros(FRAMES, np.float32)
    padded[start : start + len(kept)] = kept
    mask[start : start + len(kept)] = 1
    return padded, mask


def model_inputs(waveforms: list[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Features [recordings, FRAMES, mels] and masks [recordings, FRAMES] without augmentation."""
    filterbank = mel_filterbank()
    pairs = [pad_or_trim(log_mel(waveform, filterbank)) for waveform in waveforms]
    return np.stack([features for features, _ in pairs]), np.stack([mask for _, mask in pairs])


def _hertz_to_mel(hertz: float) -> float:
    return float(2595 * np.log10(1 + hertz / 700))
