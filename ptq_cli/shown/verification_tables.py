"""How a verification is shown."""

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ptq_cli.core.words import format_count
from ptq_cli.evaluation.verification import (
    DOUBTFUL_DB,
    KernelComparison,
    KernelDifference,
    OutputDifference,
    Verification,
)
from ptq_cli.qdq.proof.operators import OperatorProof
from ptq_cli.qdq.proof.target_faults import RULES
from ptq_cli.report.text.numbers import Table, format_decibels, format_number, format_share
from ptq_cli.report.text.result_warnings import REPAIR, SATURATING, saturation_warnings
from ptq_cli.runtime.engine import ON_CPU, ON_FLOATS
from ptq_cli.terminal.output import print_table, say, tell, warn_of_result
from ptq_cli.terminal.phrases import as_typed, counted, counting_notes

MOST_ROWS = 20
_MOST_UNKNOWN = 5
MOST_FAULTS = 5  # Most faults of one rule that are listed
QUOTED = re.compile(r"'[^']*'")


def print_verification(result: Verification, *, show_all: bool) -> None:
    """Print a verification: kernels, what stays float, structure, outputs, verdict."""
    name = as_typed(result.model, Path.cwd())
    maker = f", made by {result.made_by}" if result.made_by else ""
    say(f"{name}: opset {result.opset}{maker}")
    say(f"target {result.target}, {result.runtime or 'checked against its rules only'}")
    if result.unproven:
        say(f"warning: unproven: {result.unproven}")
    _print_kernels(result)
    listed = result.operators if show_all else [item for item in result.operators if _is_notable(item)]
    _print_operators(listed, show_all=show_all)
    _print_share(result)
    _print_faults(result)
    _print_saturation(result)
    _print_outputs(result)
    say(result.verdict.upper() if result.verdict == "fail" else result.verdict)


def _print_kernels(result: Verification) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    work: Counter[tuple[str, str]] = Counter()
    for item in result.operators:
        if item.placement == "integer":
            counts[item.op, item.kernel] += 1
            work[item.op, item.kernel] += item.multiply_accumulates or 0
    rows = tuple(
        (op, kernel, f"{counts[op, kernel]:,}", format_count(work[op, kernel]) if work[op, kernel] else "")
        for op, kernel in sorted(counts, key=lambda key: (-work[key], key))
    )
    header = ("in integers", "kernel", "nodes", "multiply-accumulates")
    if result.runtime:
        print_table(Table(header, rows), right=(2, 3), whole=(0, 1, 2))
    else:
        without = tuple((row[0], *row[2:]) for row in rows)
        print_table(Table((header[0], *header[2:]), without), right=(1, 2), whole=(0, 1))


def _is_notable(item: OperatorProof) -> bool:
    # A float operator between float operators is not notable unless it has multiply-accumulates.
    return item.placement == "float" and (item.quantized or item.multiply_accumulates != 0)


def _print_operators(items: Sequence[OperatorProof], *, show_all: bool) -> None:
    groups: dict[tuple[str, ...], list[OperatorProof]] = {}
    for item in items:
        # A transformer has the same operator with the same reason in each layer.
        key = (item.op, _placed(item), QUOTED.sub("", item.reason)) if not show_all else (item.name,)
        groups.setdefault(key, []).append(item)
    rows = tuple(
        (_named(group), group[0].op, _placed(group[0]), _work(group), group[0].reason)
        for group in groups.values()
    )
    shown = rows if show_all else rows[:MOST_ROWS]
    print_table(
        Table(("operator", "type", "runs as", "mult.-acc.", "reason"), shown),
        right=(3,),
        whole=(1, 2, 3),
        optional=(1, 3),
    )
    if len(rows) > len(shown):
        say(f"and {len(rows) - len(shown):,} more; --all lists every operator")


def _named(group: Sequence[OperatorProof]) -> str:
    return group[0].name if len(group) == 1 else f"{group[0].name} and {len(group) - 1:,} more"


def _placed(item: OperatorProof) -> str:
    if item.placement == "float" and item.kernel in (ON_FLOATS, ON_CPU):
        return item.kernel
    return item.kernel or "integer" if item.placement == "integer" else item.placement


def _work(group: Sequence[OperatorProof]) -> str:
    if any(item.multiply_accumulates is None for item in group):
        return "unknown"
    total = sum(item.multiply_accumulates or 0 for item in group)
    return format_count(total) if total else ""


def _print_share(result: Verification) -> None:
    limit = result.min_integer_share
    asked = f"; required: at least {format_share_of(limit)}" if limit is not None else ""
    say(
        f"integers: {format_share(result.integer_work, result.work)} of "
        f"{format_count(result.work)} multiply-accumulates{asked}"
    )
    for note in counting_notes(result.assumed, result.once, "pass --data to count the real sizes"):
        say(note)
    if limit is not None and result.uncounted:
        say("the share is not proven: some float operators are not counted")
    for item in result.uncounted[:_MOST_UNKNOWN]:
        loop = result.once.get(item.name, "")
        why = result.unknown.get(
            item.name, f"how many steps '{loop}' makes is known only when the model runs"
        )
        say(f"warning: '{item.name}' is not counted: {why}")
    if len(result.uncounted) > _MOST_UNKNOWN:
        say(
            f"warning: {len(result.uncounted) - _MOST_UNKNOWN:,} more are not counted; --json has all of them"
        )


def format_share_of(share: float) -> str:
    """Write a share between 0 and 1 in percent.

    Example:
        >>> format_share_of(0.95), format_share_of(1.0), format_share_of(0.999)
        ('95 %', '100 %', '99.9 %')
    """
    return f"{100 * share:.6g} %"


def _print_faults(result: Verification) -> None:
    if not result.faults:
        say(f"structure: correct for {result.target} ({', '.join(rule.name for rule in RULES)})")
        return
    by_rule: dict[str, list[str]] = {}
    for fault in result.faults:
        by_rule.setdefault(fault.rule, []).append(fault.text)
    rows = []
    for rule, texts in by_rule.items():
        rows += [(rule, text) for text in texts[:MOST_FAULTS]]
        if len(texts) > MOST_FAULTS:
            rows.append((rule, f"and {len(texts) - MOST_FAULTS:,} more; --json has all of them"))
    print_table(Table(("broken rule", "where"), tuple(rows)), whole=(0,))
    say(f"structure: {len(result.faults):,} faults for {result.target}")


def _print_saturation(result: Verification) -> None:
    found = result.saturation
    if found.layers:
        say(f"sums: {found.text}{'; required: none' if result.require_portable else ''}")
    remedy = REPAIR.format(shlex.quote(as_typed(result.model, Path.cwd())))
    if result.saturates_here:
        warnings = saturation_warnings(found)
        warn_of_result([replace(item, hints=(remedy, *SATURATING[1:])) for item in warnings])
    elif found.saturating and (result.runtime or result.require_portable):
        tell(f"hint: {remedy}")


def _print_outputs(result: Verification) -> None:
    if result.comparison is None:
        reason = "; ".join(result.data_faults) or "there are no data"
        say(f"outputs: not compared, because {reason}; pass --data or --random-inputs")
        return
    for fault in result.data_faults:
        say(f"note: data of the recipe were not used: {fault}")
    comparison = result.comparison
    data = as_typed(comparison.data, Path.cwd())
    samples = f"{counted(comparison.samples, 'sample')} of {data}"
    say(f"outputs of the optimized graph and the graph as written, {samples}:")
    for item in comparison.differences:
        say(f"  {_difference_line(item)}")
        if item in result.wrong_outputs:
            say(
                f"wrong: '{item.output}' differs by more than rounding explains; required: {DOUBTFUL_DB:g} dB"
            )
            if item.open_sizes:
                say("  only where it is compiled for inputs of any size: give the model fixed sizes first")
        elif item.sqnr_db < DOUBTFUL_DB and result.kernel_comparison is None:
            say(f"warning: '{item.output}' differs by more than the rounding of one kernel explains")
    if result.kernel_comparison is not None:
        doubtful = any(
            item.sqnr_db < DOUBTFUL_DB and item not in result.wrong_outputs for item in comparison.differences
        )
        _print_kernel_comparison(result.kernel_comparison, is_doubtful=doubtful)


def _print_kernel_comparison(found: KernelComparison, *, is_doubtful: bool) -> None:
    if found.fault:
        say(f"warning: the kernels could not be compared one by one: {found.fault}")
        return
    samples = counted(found.samples, "sample")
    if found.wrong:
        say(
            f"wrong: run alone on {samples}, {len(found.wrong):,} of {counted(found.kernels, 'kernel')} "
            f"differ by more than {found.limit:g} steps of 8 bits from the graph as written:"
        )
        for item in found.wrong[:MOST_FAULTS]:
            say(f"  {item.op} '{item.node}': {item.steps:.3g} steps{_share_text(item)}")
        if len(found.wrong) > MOST_FAULTS:
            say(f"  and {len(found.wrong) - MOST_FAULTS:,} more; --json has all of them")
        return
    worst = found.differences[0] if found.differences else None
    if worst is not None and worst.steps > found.limit:
        say(f"kernels: all {found.kernels:,} are right together, by the outputs; alone OpenVINO runs others")
        return
    if worst is None:
        say(f"kernels: run alone on {samples}, all {found.kernels:,} equal the graph as written")
        return
    steps = "1 step" if worst.steps == 1 else f"{worst.steps:.2g} steps"
    say(
        f"kernels: run alone on {samples}, each of {found.kernels:,} differs by at most {steps} of 8 bits "
        f"from the graph as written; most: {worst.op} '{worst.node}'{_share_text(worst)}"
    )
    if is_doubtful:
        say(
            "note: these single steps add up along the network until the outputs differ as above: no kernel "
            "is wrong, but the model is sensitive to rounding"
        )


def _share_text(item: KernelDifference) -> str:
    if item.share is None:
        return ""
    return f" in {100 * item.share:.2g} % of its values"


def _difference_line(item: OutputDifference) -> str:
    if item.absolute == 0:
        return f"{item.output}: identical"
    step = "its grid" if item.on_grid else "8 bits over its range"
    return (
        f"{item.output}: at most {item.steps:.2g} steps of {step} ({format_number(item.absolute)}), "
        f"SQNR {format_decibels(item.sqnr_db)}"
    )
