"""What ``ptq bench`` prints: a table of latencies, and tables of the operators that they consist of."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from ptq_cli.evaluation.interval import Interval
from ptq_cli.evaluation.latency import LatencyComparison
from ptq_cli.latency.latency_doubts import described, latency_doubts
from ptq_cli.latency.operator_times import NodeTime, OperatorSummary, by_operator, growth
from ptq_cli.latency.run_bench import BenchResult, BenchScenario, shown_names
from ptq_cli.report.text.numbers import Table, format_latency
from ptq_cli.report.text.result_warnings import saturation_warnings
from ptq_cli.terminal.output import print_table, say, warn_of_result
from ptq_cli.terminal.phrases import as_typed, counted

_HEADER = ("model", "p50", "CPU time", "samples/s", "speed", "p90", "p99", "speed by CPU time", "runs")
_NUMBERS = tuple(range(1, len(_HEADER)))
WIDEST_LABEL = 20  # characters of a file's name that a column has room for
_SMALL = 0.01  # the share of every model's run below which operators are added up in one row
MOST_GROWN = 5  # Operators that the comparison with the first model names
MERGED = "merged"
_SAME = "the same model"
MICRO = 1e-6


def print_bench(result: BenchResult, top: int) -> None:
    """Print all latencies in one table, and a table of operators for each scenario if there are profiles."""
    names, scenarios = shown_names(result.models), result.scenarios
    if len(scenarios) == 1:
        say(f"{described(scenarios[0].latency)}, {_turns(scenarios[0].latency)}")
    for inputs in dict.fromkeys(item.inputs for item in scenarios):
        say(f"inputs: {', '.join(map(str, inputs))}, from {as_typed(result.data, Path.cwd())}")
    for fault in result.data_faults:
        say(f"note: data of the recipe were not used: {as_typed(fault, Path.cwd())}")
    _print_latencies(scenarios, names, result.same_as_first)
    for item in scenarios:
        where = f"{described(item.latency)}: " if len(scenarios) > 1 else ""
        for doubt in latency_doubts(item.latency, names):
            say(f"note: {where}{doubt}")
    for item in scenarios:
        if item.profiles:
            _print_operators(item, names, top)


def warn_of_saturation(result: BenchResult) -> None:
    """Print on stderr which models can saturate on this processor."""
    named = zip(result.saturation, shown_names(result.models), strict=True)
    warn_of_result(warning for found, name in named for warning in saturation_warnings(found, name))


def _print_latencies(
    scenarios: Sequence[BenchScenario], names: Sequence[str], same_as_first: Sequence[bool]
) -> None:
    rows = []
    for item in scenarios:
        if len(scenarios) > 1:
            rows.append((described(item.latency), *("" for _ in _NUMBERS)))
        indent = "  " if len(scenarios) > 1 else ""
        cells = _cells(item.latency, same_as_first)
        rows += [(indent + name, *row) for name, row in zip(names, cells, strict=True)]
    alone = len(names) == 1
    kept = [index for index, name in enumerate(_HEADER) if not (alone and name.startswith("speed"))]
    table = Table(
        tuple(_HEADER[index] for index in kept), tuple(tuple(row[index] for index in kept) for row in rows)
    )
    numbers = tuple(range(1, len(kept)))
    optional = tuple(place for place, index in enumerate(kept) if index > _HEADER.index("speed"))
    hidden = print_table(table, right=numbers, whole=numbers, optional=optional)
    if not alone:
        say(f"speed: how many times as fast as {names[0]}, with the 95 % interval")
    if hidden:
        say(f"the terminal is too narrow for: {', '.join(hidden)}; --json has them")


def _cells(latency: LatencyComparison, same_as_first: Sequence[bool]) -> list[tuple[str, ...]]:
    speeds = [
        ("1", "1"),
        *(
            (_SAME, _SAME)
            if same
            else (_speed(ratio.value, ratio.interval), _speed(ratio.processor, ratio.processor_interval))
            for ratio, same in zip(latency.ratios, same_as_first[1:], strict=True)
        ),
    ]
    return [
        (
            format_latency(item.p50),
            format_latency(item.processor),
            f"{item.samples_per_second:.4g}",
            speed,
            format_latency(item.p90),
            format_latency(item.p99),
            by_processor,
            f"{item.runs:,}",
        )
        for item, (speed, by_processor) in zip(latency.models, speeds, strict=True)
    ]


def _speed(ratio: float, interval: Interval | None) -> str:
    ends = f" ({1 / interval.high:.3f} to {1 / interval.low:.3f})" if interval is not None else ""
    return f"{1 / ratio:.3f}{ends}"


def _turns(latency: LatencyComparison) -> str:
    rounds = f" in {latency.rounds} rounds" if latency.rounds > 1 else ""
    return f"{latency.turns:,} turns{rounds}"


def _print_operators(scenario: BenchScenario, names: Sequence[str], top: int) -> None:
    """Print the time of each type of operator, and the slowest nodes, the models side by side."""
    models = [{found.operator: found for found in by_operator(nodes)} for nodes in scenario.profiles]
    largest: dict[str, float] = defaultdict(float)
    for model in models:
        for operator, found in model.items():
            largest[operator] = max(largest[operator], found.microseconds)
    order = sorted(largest, key=lambda name: -largest[name])
    shown = [name for name in order if any(name in model and model[name].share >= _SMALL for model in models)]
    groups = {name: [name] for name in shown}
    if rest := [name for name in order if name not in shown]:
        groups["others"] = rest
    labels = _labels(names)
    counts = [f"nodes {label}" for label in labels] if len(labels) > 1 else ["nodes"]
    rows = tuple(
        (name, *(_total(model, group) for model in models), *(_count(model, group) for model in models))
        for name, group in groups.items()
    )
    say(f"\noperators of a run, {described(scenario.latency)}:")
    numbers = tuple(range(1, 1 + 2 * len(models)))
    hidden = print_table(
        Table(("operator", *labels, *counts), rows),
        right=numbers,
        whole=numbers,
        optional=numbers[len(models) :],
    )
    _say_labels(names)
    merged = f"; {MERGED}: part of another operator's kernel, or computed before the run"
    say(f"time and share of a run{merged if any(MERGED in cell for row in rows for cell in row) else ''}")
    if hidden:
        say(f"the terminal is too narrow for: {', '.join(hidden)}; --json has them")
    for name, nodes in zip(names[1:], scenario.profiles[1:], strict=True):
        _say_growth(names[0], name, growth(scenario.profiles[0], nodes), sum(largest.values()))
    if top:
        _print_nodes(scenario, names, top)


def _say_growth(first: str, name: str, more: Sequence[tuple[str, float]], whole: float) -> None:
    shown = [f"{operator} (+{_time(time)})" for operator, time in more[:MOST_GROWN] if time > _SMALL * whole]
    if shown:
        say(f"{name} spends more time than {first} on {', '.join(shown)}")


def _total(model: Mapping[str, OperatorSummary], group: Sequence[str]) -> str:
    own = [model[operator] for operator in group if operator in model]
    time, share = sum(item.microseconds for item in own), sum(item.share for item in own)
    if not own:
        return ""
    return f"{_time(time)} {100 * share:3.0f} %" if time else MERGED


def _count(model: Mapping[str, OperatorSummary], group: Sequence[str]) -> str:
    nodes = sum(model[operator].nodes for operator in group if operator in model)
    return f"{nodes:,}" if nodes else ""


def _print_nodes(scenario: BenchScenario, names: Sequence[str], top: int) -> None:
    models = [_by_name(nodes) for nodes in scenario.profiles]
    keys = {key: max(model.get(key, 0.0) for model in models) for model in models for key in model}
    slowest = sorted(keys, key=lambda key: -keys[key])[:top]
    rows = tuple((*key, *(_time(model[key]) if key in model else "" for model in models)) for key in slowest)
    numbers = tuple(range(2, 2 + len(models)))
    say(f"\nslowest nodes, {described(scenario.latency)}:")
    print_table(Table(("node", "operator", *_labels(names)), rows), right=numbers, whole=numbers)
    say(f"{len(slowest):,} of {len(keys):,} nodes; --json has all")


def _by_name(nodes: Sequence[NodeTime]) -> dict[tuple[str, str], float]:
    return {
        (node.name or f"(node {index})", node.operator): node.microseconds for index, node in enumerate(nodes)
    }


def _time(microseconds: float) -> str:
    return format_latency(MICRO * microseconds) if microseconds else MERGED


def _labels(names: Sequence[str]) -> list[str]:
    """Column titles of the models: the names of their files, or numbers if those are long."""
    short = [Path(name).name for name in names]
    if len(set(short)) < len(short) or max(map(len, short)) > WIDEST_LABEL:
        return [f"({index})" for index, _ in enumerate(names, 1)]
    return short


def _say_labels(names: Sequence[str]) -> None:
    for label, name in zip(_labels(names), names, strict=True):
        if label != Path(name).name:
            say(f"{label} {name}")


def latency_line(floating: float, integer: float, expected: float, batch: int, threads: int) -> str:
    """Return what the forms of a model take, from microseconds.

    Example:
        >>> latency_line(600.0, 800.0, 450.0, 1, 2)
        'at batch 1 and 2 threads: 600 µs in float, 800 µs in integers, 450 µs expected'
    """
    times = [format_latency(time / 1e6) for time in (floating, integer, expected)]
    counts = f"at batch {batch} and {counted(threads, 'thread')}"
    return f"{counts}: {times[0]} in float, {times[1]} in integers, {times[2]} expected"
