"""``[runtime]``: the machine."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RuntimeSettings:
    """``[runtime]``: how ONNX Runtime runs.

    Attributes:
        device: device that a calibration runs on: ``"cpu"``, ``"cuda"``, or ``"cuda:1"`` for the second GPU.
            An evaluation always runs on the CPU, because it tests the CPU's integer kernels.
        threads: number of threads; 0 for one per core.
        prefetch: number of batches to decode ahead.
        max_memory: limit for the peak memory of a calibration, such as ``"2GiB"`` or ``"800MB"``. If empty,
            it takes what one batch and its measured tensors need. It limits the host's memory, not a GPU's.
            A recovery keeps half of it, or else 2 GiB, for the tensors between layers, and the rest of them
            in a file in the folder of the output.
        accuracy_level: accuracy level at which a quantized model with weights in blocks is measured, 0 to 4;
            ONNX Runtime's default, 4, if not set. It is an option of the session that runs the model, and is
            not stored in it; see ``docs/weight_only.md``.
    """

    device: str = "cpu"
    threads: int = 0
    prefetch: int = 1
    max_memory: str = ""
    accuracy_level: int | None = None
