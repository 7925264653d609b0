"""``repair``: a quantized file, and the same one whose integer sums are the same on every processor."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ptq_cli.core.errors import NotQuantizedError, UnlikeFloatError
from ptq_cli.core.files import write_together
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.evaluation.document.report_document import SaturatingLayer, Saturation
from ptq_cli.models.files.stored import StoredModel, read_model
from ptq_cli.pipeline.evaluation.compared_kernels import ComparedSamples, compared_samples
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.read.quantized_file import is_quantized
from ptq_cli.repair.float_weights import FloatWeights
from ptq_cli.repair.measured_repair import BatchOutputs, Means, correct_biases, outputs_of, worst_sqnr
from ptq_cli.repair.raw_file import RawFile
from ptq_cli.repair.repair_document import ChangedWeight, Repair, RepairComparison
from ptq_cli.repair.repaired_weight import RepairedWeight, repair_weight, set_all
from ptq_cli.repair.weight_sites import UnsafeWeight, find_sites
from ptq_cli.runtime.products import is_signed_exact
from ptq_cli.runtime.session import DEFAULT_KERNELS, Kernels
from ptq_cli.runtime.timing import Inputs, batch_size
from ptq_cli.setup.output_checks import require_output
from ptq_cli.setup.resolve import Request, Resolved, resolve

_TARGET = "ort-cpu"  # whose rules say which operators move a pair


@dataclass(frozen=True, kw_only=True)
class RepairOptions:
    """What of a repair is wanted.

    Attributes:
        float_model: the model that the file was quantized from; None to round the file's own weights.
        output: None for a file beside the model.
        check: only say whether a repair is needed.
    """

    float_model: Path | None = None
    output: Path | None = None
    check: bool = False


def run_repair(
    request: Request, path: Path, options: RepairOptions, progress: ProgressCallback = silent
) -> Repair:
    """Repair a file, and write the result beside it or where it is wanted.

    ``request`` says which data there are, and how they are read.
    """
    output = options.output or path.with_name(f"{path.stem}.repaired.onnx")
    progress(Progress(f"reading {path.name}", 0, None))
    resolved = resolve(request)
    raw = RawFile.open(path)
    sites, layers = find_sites(raw.model, load_target(_TARGET))
    if not layers:
        has = (
            "only weights, or other numbers than integers of 8 bits" if is_quantized(raw.model) else "nothing"
        )
        raise NotQuantizedError(
            f"no layer of '{path.name}' multiplies integers of 8 bits: {has} in it is quantized",
            hint="pass an int8 model; ptq quantize makes one of a float model that needs no repair",
        )
    before = Saturation(layers, tuple(_saturating(sites)))
    if options.check:
        return Repair(
            model=str(path), output=None, before=before, after=None, changed=(), copied=(), comparison=None
        )
    inputs = {"the model that it repairs": path}
    if options.float_model is not None:
        inputs["the float model"] = options.float_model
    require_output(output, inputs)
    samples = _samples(raw, resolved) if "data" in request.settings else None
    floats = FloatWeights(options.float_model) if options.float_model is not None else None
    made = list[RepairedWeight]()
    for number, site in enumerate(sites):
        progress(Progress("repairing weights", number, len(sites)))
        found = floats.of(site) if floats is not None else None
        made.append(repair_weight(raw, site, found, resolved.machine.threads))
    if floats is not None and made and not any(item.floats is not None for item in made):
        raise UnlikeFloatError(
            f"'{options.float_model}' holds none of the weights of '{path.name}'",
            hint="pass the model that the file was quantized from, or leave --float out",
        )
    stored = raw.stored(output)
    comparison = None
    if samples is not None and samples.batches:
        run = _Compared(
            raw=raw, path=path, options=options, samples=samples, threads=resolved.machine.threads
        )
        comparison, stored = run.compare(made, floats, stored, output, progress)
    write_together(stored.files(output))
    return Repair(
        model=str(path),
        output=str(output),
        before=before,
        after=Saturation(layers),
        changed=tuple(map(_changed, made)),
        copied=tuple(raw.copied),
        comparison=comparison,
    )


def _samples(raw: RawFile, resolved: Resolved) -> ComparedSamples:
    return compared_samples(
        raw.model, resolved.recipe, resolved.strict_reading(), required=True, made_up=False
    )[0]


@dataclass(frozen=True, kw_only=True)
class _Compared:
    """Runs of a file before and after its repair on samples."""

    raw: RawFile
    path: Path
    options: RepairOptions
    samples: ComparedSamples
    threads: int

    def compare(
        self,
        made: list[RepairedWeight],
        floats: FloatWeights | None,
        stored: StoredModel,
        output: Path,
        progress: ProgressCallback,
    ) -> tuple[RepairComparison, StoredModel]:
        """Correct biases, and return what the outputs say, with the file as it is then."""
        learned, judged = _halves(self.samples.batches)
        file = read_model(self.path)
        progress(Progress("comparing outputs", 0, None))
        before = self._run(file)
        exact = before if is_signed_exact() else self._run(file, Kernels(unsigned_weights=True))
        float_model = self.options.float_model
        reference = exact if float_model is None else self._run(read_model(float_model))
        after, biases = self._run(stored), 0
        means = Means(self.raw, made)
        means.measure(stored, learned, self.threads, progress)
        if earlier := correct_biases(self.raw, floats, means):
            stored = self.raw.stored(output)
            found = self._run(stored)
            if worst_sqnr(reference[judged], found[judged]) > worst_sqnr(reference[judged], after[judged]):
                after, biases = found, len(earlier)
            else:
                set_all(self.raw, earlier, again=True)
                stored = self.raw.stored(output)
        comparison = RepairComparison(
            data=self.samples.data,
            samples=self.samples.count or sum(map(batch_size, self.samples.batches)),
            reference="float model" if float_model is not None else "file with exact sums",
            saturates_here=not is_signed_exact(),
            before_db=worst_sqnr(reference, before),
            exact_db=worst_sqnr(reference, exact) if float_model is not None else None,
            after_db=worst_sqnr(reference, after),
            biases=biases,
        )
        return comparison, stored

    def _run(self, model: StoredModel, kernels: Kernels = DEFAULT_KERNELS) -> BatchOutputs:
        return outputs_of(model, self.samples.batches, self.threads, kernels)


def _halves(batches: Sequence[Inputs]) -> tuple[Sequence[Inputs], slice]:
    """Return the batches that biases are corrected on, and where those are that judge them."""
    half = len(batches) // 2
    return batches[: half or 1], slice(half, None)


def _saturating(sites: list[UnsafeWeight]) -> list[SaturatingLayer]:
    return [
        SaturatingLayer(
            name=layer.node.name or "",
            op=layer.node.op_type,
            pairs=layer.unsafe.pairs,
            of_pairs=layer.unsafe.of_pairs,
            channels=layer.unsafe.channels,
            of_channels=layer.unsafe.of_channels,
        )
        for site in sites
        for layer in site.layers
        if layer.unsafe.pairs
    ]


def _changed(item: RepairedWeight) -> ChangedWeight:
    return ChangedWeight(
        name=item.site.stored.name or "",
        layers=tuple(layer.node.name or "" for layer in item.site.layers),
        rounded_from="float model" if item.floats is not None else "file",
        largest_change=item.change,
        largest_factor=item.factor,
    )
