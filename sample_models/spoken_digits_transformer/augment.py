"""Random changes to a recording that keep its digit: four speakers alone are little to learn from."""

import numpy as np
from features import SAMPLE_RATE, WINDOW, FloatArray, log_mel, mel_filterbank, pad_or_trim
from model import FRAMES, MELS

WARPS = np.linspace(0.8, 1.25, 19)
FILTERBANKS = [mel_filterbank(float(warp)) for warp in WARPS]


def resample(waveform: FloatArray, speed: float) -> FloatArray:
    """Plays the waveform `speed` times as fast, which moves its pitch and formants too."""
    positions = np.arange(0, len(waveform) - 1, speed)
    return np.interp(positions, np.arange(len(waveform)), waveform).astype(np.float32)


def add_noise(waveform: FloatArray, generator: np.random.Generator) -> FloatArray:
    """Adds noise of a random colour, 5 to 40 dB below the recording's power."""
    count = len(waveform)
    spectrum = np.fft.rfft(generator.standard_normal(count))
    slope = generator.uniform(0.0, 1.0)
    noise = np.fft.irfft(spectrum / np.arange(1, len(spectrum) + 1) ** slope, count)
    decibel = generator.uniform(5.0, 40.0)
    gain = np.sqrt(np.mean(waveform**2) / max(float(np.mean(noise**2)), 1e-12)) * 10 ** (-decibel / 20)
    return (waveform + gain * noise).astype(np.float32)


def crop_or_extend(waveform: FloatArray, generator: np.random.Generator) -> FloatArray:
    """Cuts up to 40 ms from each end or adds up to 80 ms of near silence to it."""
    ends = [int(change) for change in generator.integers(-SAMPLE_RATE // 25, 2 * SAMPLE_RATE // 25, 2)]
    start, end = (max(0, -change) for change in ends)
    kept = waveform[start : max(len(waveform) - end, start + WINDOW)]
    silence = [generator.standard_normal(max(0, change)) * 1e-3 * kept.std() for change in ends]
    return np.concatenate([silence[0], kept, silence[1]]).astype(np.float32)


def stretch(features: FloatArray, factor: float) -> FloatArray:
    """Stretches features [frames, mels] in time by linear interpolation, with the pitch unchanged."""
    positions = np.linspace(0, len(features) - 1, max(8, round(len(features) * factor)))
    lower = positions.astype(np.int64)
    upper = np.minimum(lower + 1, len(features) - 1)
    weight = (positions - lower)[:, None].astype(np.float32)
    return features[lower] * (1 - weight) + features[upper] * weight


def erase(features: FloatArray, generator: np.random.Generator) -> FloatArray:
    """SpecAugment (Park and others, 2019): zeros up to two bands of mels and two spans of frames."""
    erased = features.copy()
    for _ in range(2):
        width, span = generator.integers(0, 8), generator.integers(0, 1 + len(features) // 6)
        band = generator.integers(0, MELS - width)
        first = generator.integers(0, len(features) - span)
        erased[:, band : band + width] = 0
        erased[first : first + span] = 0
    return erased


def tilt(features: FloatArray, generator: np.random.Generator) -> FloatArray:
    """Scales the features' contrast and adds a slowly changing gain over the frames."""
    contrast = generator.uniform(0.8, 1.25)
    drift = np.interp(np.linspace(0, 1, len(features)), np.linspace(0, 1, 4), generator.normal(0, 0.15, 4))
    return (features * contrast + drift[:, None]).astype(np.float32)


def augmented_inputs(waveform: FloatArray, generator: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """One random version of a recording as the model's inputs [FRAMES, mels] and [FRAMES]."""
    waveform = resample(waveform, generator.uniform(0.8, 1.25))
    waveform = crop_or_extend(waveform, generator)
    if generator.random() < 0.6:
        waveform = add_noise(waveform, generator)
    features = log_mel(waveform, FILTERBANKS[generator.integers(len(FILTERBANKS))])
    features = stretch(features, generator.uniform(0.7, 1.35))
    features = erase(tilt(features, generator), generator)
    room = max(0, FRAMES - len(features))
    start = int(generator.integers(0, min(room, 8) + 1)) if generator.random() < 0.5 else 0
    return pad_or_trim(features, start)
