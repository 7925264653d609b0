"""The part of the machine that a command may use: a device, threads, memory."""

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ptq_cli.core.errors import UnknownNameError
from ptq_cli.core.words import did_you_mean

CUDA = "cuda"
_KINDS = ("cpu", CUDA)
_ALIASES = re.compile(r"(gpu|nvidia|cuda).*", re.IGNORECASE)


@dataclass(frozen=True)
class Device:
    """A device, by ONNX Runtime's and PyTorch's name for it.

    Attributes:
        index: which GPU; None where that was left open.

    Example:
        >>> Device(), Device("cuda"), str(Device("cuda", 1))
        (Device(kind='cpu', index=None), Device(kind='cuda', index=None), 'cuda:1')
    """

    kind: str = "cpu"
    index: int | None = None

    @property
    def is_host(self) -> bool:
        """Whether tensors are arrays in the host's memory."""
        return self.kind == "cpu"

    @property
    def number(self) -> int:
        """Which GPU: the first, where that was left open."""
        return self.index or 0

    @property
    def provider(self) -> str:
        """ONNX Runtime's name of what runs there."""
        return "CPUExecutionProvider" if self.is_host else "CUDAExecutionProvider"

    @property
    def provider_options(self) -> dict[str, str]:
        """How ONNX Runtime is to run there."""
        if self.is_host:
            return {}
        return {
            "device_id": str(self.number),
            # TF32 cuts float32 to 10 bits of mantissa, which the histogram's 11 would show.
            "use_tf32": "0",
            # An exhaustive search, which is the default, may find another algorithm in each run.
            "cudnn_conv_algo_search": "HEURISTIC",
            # The counting needs memory of the GPU as well, and ONNX Runtime takes twice what it needs.
            "arena_extend_strategy": "kSameAsRequested",
        }

    @property
    def memory(self) -> tuple[str, int]:
        """ONNX Runtime's name of its memory."""
        return self.kind, self.number

    def for_rank(self, local_rank: int) -> "Device":
        """Return the device of one of several processes on a machine: each its own GPU, if none was named.

        Example:
            >>> str(Device("cuda").for_rank(2)), str(Device("cuda", 0).for_rank(2))
            ('cuda:2', 'cuda:0')
        """
        return self if self.is_host or self.index is not None else replace(self, index=local_rank)

    def __str__(self) -> str:
        return self.kind if self.is_host or self.index is None else f"{self.kind}:{self.index}"


HOST = Device()


def parse_device(text: str) -> Device:
    """Return the device that ``runtime.device`` names."""
    kind, colon, number = text.partition(":")
    if text in _KINDS:
        return Device(text)
    if kind == CUDA and colon and number.isascii() and number.isdigit() and len(number) < 10:
        return Device(CUDA, int(number))
    # To a program 'cpu' is the nearest name of 'gpu'.
    meant = " (did you mean 'cuda'?)" if _ALIASES.fullmatch(text) else did_you_mean(text, list(_KINDS))
    raise UnknownNameError(f"unknown device '{text}'{meant}", hint="known: cpu, cuda, cuda:N")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The part of the machine that a command may use.

    Attributes:
        memory: bytes of the host's memory that a calibration may take; None for any number.
    """

    device: Device
    threads: int
    memory: int | None


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_counts(asked: Sequence[int]) -> tuple[int, ...]:
    """Return numbers of threads, each once, where 0 means one per core.

    Example:
        >>> thread_counts([1, 4, 1])
        (1, 4)
    """
    return tuple(dict.fromkeys(threads or usable_cores() for threads in asked))


# Flags in /proc/cpuinfo of instructions that decide which kernels multiply bytes, and their makers' names.
_INSTRUCTIONS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx_vnni": "AVX-VNNI",
    "avx512_vnni": "AVX-512 VNNI",
    "amx_int8": "AMX",
    "asimddp": "dot products",
    "i8mm": "I8MM",
}


def processor_words(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's architecture, with the instructions that integer kernels use where Linux tells.

    Example:
        >>> processor_words(Path("nowhere")) == platform.machine()
        True
    """
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else ""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    flags = found[1].split() if found is not None else []
    names = ", ".join(name for flag, name in _INSTRUCTIONS.items() if flag in flags)
    return f"{platform.machine()} with {names}" if names else platform.machine()
