"""Documents of cases that travel: the folder's manifest, and what devices gave for it."""

import hashlib
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ptq_cli.core.documents import AtLeast, FileFormat, Matches
from ptq_cli.core.errors import CasesError
from ptq_cli.evaluation.interval import TOLERANCE as ROUNDING

CASE_MODEL = "model"  # The name of the case of the whole file
_Sha256 = Annotated[str, Matches("[0-9a-f]{64}", "a SHA-256 in hexadecimal")]
FileName = Annotated[str, Matches(r"(kernels/)?[\w-]+\.(onnx|safetensors)", "a file of the folder")]
DataName = Annotated[str, Matches(r"(model\.data)?", "a file of the folder, or nothing")]
DataSha256 = Annotated[str, Matches("([0-9a-f]{64})?", "a SHA-256 in hexadecimal, or nothing")]
PACK_AGAIN = "pack the cases again with ptq verify --pack, and copy the folder as it is"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model with inputs and what has to come out: the whole file, or one of its integer kernels."""

    name: Annotated[str, '"model" for the whole file, and "kernel-001" and so on.']
    node: Annotated[str, "Name of the operator; empty for the whole file."]
    op: Annotated[str, "What ONNX Runtime makes of it, such as QLinearConv; empty for the whole file."]
    exact: Annotated[
        bool, "Whether it adds products of integers only; otherwise a step of rounding is allowed."
    ]
    runs: Annotated[Annotated[int, AtLeast(1)], "How often it is run, on inputs of their own."]
    model: Annotated[FileName, "Its ONNX file."]
    model_sha256: Annotated[_Sha256, "Of that file."]
    data: Annotated[DataName, "The file of its large constants; empty if they are in the ONNX file."]
    data_sha256: Annotated[DataSha256, "Of that file; empty without one."]

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """Name and hash of each of its files."""
        model, data = (self.model, self.model_sha256), (self.data, self.data_sha256)
        tensors = (self.tensors, self.tensors_sha256)
        return (model, data, tensors) if self.data else (model, tensors)

    tensors: Annotated[FileName, "Its inputs and outputs, RUN:KIND:NAME in a safetensors file."]
    tensors_sha256: Annotated[_Sha256, "Of that file."]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What ``manifest.json`` says: which cases a folder holds, and what they were made of."""

    FORMAT: ClassVar[FileFormat] = FileFormat(
        name="ptq.cases", version=1, noun="manifest", error=CasesError, hint=PACK_AGAIN
    )
    DERIVED: ClassVar[tuple[str, ...]] = ("id",)

    versions: Annotated[dict[str, str], "Of ptq and of the libraries that made the folder, by name."]
    machine: Annotated[str, "The processor's architecture of the machine that made it."]
    source: Annotated[str, "Name of the quantized file."]
    source_sha256: Annotated[_Sha256, "Of that file; the cases hold it with the inputs that were fixed."]
    target: Annotated[str, "The target that it is for."]
    data: Annotated[str, "Name of the data that its samples are from, or that they were generated."]
    samples: Annotated[int, "How many runs of the whole file."]
    reference: Annotated[
        Literal["float", "written"],
        "What SQNR is measured against: the float model, or the file as it is written, without integer "
        "kernels.",
    ]
    cases: Annotated[tuple[Case, ...], "The whole file first, then its kernels in the order of the graph."]

    @property
    def id(self) -> str:
        """Hash of all that is run; an answer names it."""
        hashes = (sha256 for case in self.cases for _, sha256 in case.files)
        return hashlib.sha256(" ".join(hashes).encode()).hexdigest()

    @property
    def kernels(self) -> tuple[Case, ...]:
        """All cases but that of the whole file."""
        return tuple(case for case in self.cases if case.op)

    @property
    def model_sha256(self) -> str:
        """Of the whole file."""
        return self.cases[0].model_sha256


@dataclass(frozen=True, kw_only=True)
class DeviceKernel:
    """An integer kernel on a device, alone, on the integers that it meets in the file and on extremes."""

    DERIVED: ClassVar[tuple[str, ...]] = ("exact",)

    name: Annotated[str, "Name of the case."]
    node: Annotated[str, "Name of the operator."]
    op: Annotated[str, "What ONNX Runtime makes of it."]
    differing: Annotated[int, "Values that are not as they have to be."]
    values: Annotated[int, "Values in all."]
    steps: Annotated[float, "The largest difference, in steps of its integers or of its sums."]
    fault: Annotated[str, "Why the device did not run it; empty if it did."] = ""

    @property
    def exact(self) -> bool:
        """Whether it gave the exact integers; one that adds no products may be a step apart."""
        return not self.differing and not self.fault


@dataclass(frozen=True, kw_only=True)
class DeviceOutput:
    """A float output of the whole file on a device, beside the same of the machine that made the cases."""

    output: Annotated[str, "Its name."]
    sqnr_db: Annotated[float, "SQNR on the device, against the manifest's reference."]
    expected_sqnr_db: Annotated[float, "The same of the expected outputs."]
    top1_agreement: Annotated[
        float | None, "Share of rows whose largest value is the reference's; None if rows have one value."
    ]
    expected_top1_agreement: Annotated[float | None, "The same of the expected outputs."]


@dataclass(frozen=True, kw_only=True)
class DeviceAnswer:
    """What a device gave for all cases."""

    DERIVED: ClassVar[tuple[str, ...]] = (
        "exact_share",
        "steps",
        "first_difference",
        "sqnr_db",
        "top1_agreement",
    )

    file: Annotated[str, "The answer file."]
    device: Annotated[
        str, "Name of the device, as the runner was told; with its file's if two have the same."
    ]
    machine: Annotated[str, "Its architecture."]
    system: Annotated[str, "Its operating system, or the browser."]
    runtime: Annotated[str, "The runtime with its version."]
    provider: Annotated[str, "The execution provider."]
    threads: Annotated[int, "Threads of one operator."]
    seconds: Annotated[float | None, "Median time of a run of the whole file there; None if it did not run."]
    emulated: Annotated[bool, "Whether the processor was emulated, as the runner was told."] = False
    kernels: Annotated[tuple[DeviceKernel, ...], "In the order of the graph."]
    outputs: Annotated[tuple[DeviceOutput, ...], "Of the whole file."]
    fault: Annotated[str, "Why the device did not run the whole file; empty if it did."] = ""

    @property
    def exact_share(self) -> float:
        """Share of the kernels that gave the exact integers; 1 if there are none."""
        return sum(item.exact for item in self.kernels) / len(self.kernels) if self.kernels else 1.0

    @property
    def steps(self) -> float | None:
        """The largest difference of a kernel that is not exact, in steps; None if all that ran are exact."""
        return max((item.steps for item in self.kernels if not item.exact and not item.fault), default=None)

    @property
    def sqnr_db(self) -> float | None:
        """The lowest SQNR of an output; None if none could be compared."""
        return min((item.sqnr_db for item in self.outputs), default=None)

    @property
    def top1_agreement(self) -> float | None:
        """The lowest top-1 agreement of an output; None if no output has rows of several values."""
        found = [item.top1_agreement for item in self.outputs if item.top1_agreement is not None]
        return min(found, default=None)

    @property
    def first_difference(self) -> str | None:
        """Name of the first operator in the graph whose kernel is not exact; None if all are."""
        return next((item.node for item in self.kernels if not item.exact), None)


GATED = ("sqnr_db", "top1_agreement")  # What ``--min`` may limit


@dataclass(frozen=True, kw_only=True)
class CaseGate:
    """A limit on what each device gave."""

    DERIVED: ClassVar[tuple[str, ...]] = ("passed",)

    device: Annotated[str, "Name of the device."]
    metric: Annotated[Literal["exact_kernels", "sqnr_db", "top1_agreement"], "What is limited from below."]
    limit: Annotated[float, "The limit."]
    value: Annotated[float | None, "What was found; None if nothing could be measured, which fails."]

    @property
    def passed(self) -> bool:
        """Whether the value reaches the limit."""
        return self.value is not None and self.value >= self.limit - ROUNDING


@dataclass(frozen=True, kw_only=True)
class DeviceAnswers:
    """What ``ptq verify --answers`` found; ``devices.json`` of a run that has a report of this model."""

    FORMAT: ClassVar[FileFormat] = FileFormat(
        name="ptq.devices", version=1, noun="answers of devices", hint="run ptq verify --answers again"
    )
    DERIVED: ClassVar[tuple[str, ...]] = ("verdict",)

    cases: Annotated[str, "The folder of cases."]
    manifest: Annotated[Manifest, "What it holds."]
    devices: Annotated[tuple[DeviceAnswer, ...], "One for each answer file."]
    gates: Annotated[tuple[CaseGate, ...], "Each limit on each device."]

    @property
    def verdict(self) -> Literal["pass", "fail", "no gate"]:
        """``"fail"`` if a limit is missed on a device."""
        if not self.gates:
            return "no gate"
        return "pass" if all(item.passed for item in self.gates) else "fail"
