"""Compare the size of the house with its budget: lines of each room, commands, options, keys, words.

python -m tools.budget [--lower]

``tools/budget.toml`` holds the numbers, and ``make lint`` fails where one is exceeded. To raise one, write a
decision record that says what was removed instead; ``--lower`` lowers those that are larger than need be.
"""

import argparse
import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import tomli_w

ROOT = Path(__file__).parent.parent
FILE = ROOT / "tools" / "budget.toml"
MOST_PARAMETERS = 6
OF_ALL = {"quiet", "debug"}  # Options that every command has
Budget = dict[str, dict[str, int]]


def measured() -> Budget:
    """Size of the house now, by section of the budget and name."""
    package = _sources("ptq_cli")
    parameters = [number for path in package for number in _parameters(path)]
    options = _options()
    return {
        "rooms": _lines_by_room(package),
        "package": {
            "lines": _lines(package),
            "files": len(package),
            "functions_of_more_than_6_parameters": sum(number > MOST_PARAMETERS for number in parameters),
            "parameters_of_a_function": max(parameters),
        },
        "tests": {"lines": _lines(_sources("tests"))},
        "tools": {"lines": _lines(_sources("tools")), "benchmark_lines": _lines(_sources("benchmarks"))},
        "commands": {"commands": len(options), "options_of_quantize": options["quantize"], "keys": _keys()},
        "words": {"docs": _words(_files("docs", "*.md")), "readme": _words([ROOT / "README.md"])},
    }


def exceeded(found: Budget, budget: Budget) -> Iterator[str]:
    """A line for each number above the budget, and for each that has none."""
    for section, numbers in found.items():
        for name, number in numbers.items():
            allowed = budget.get(section, {}).get(name)
            if allowed is None:
                yield f"{section}.{name} is {number}, and tools/budget.toml does not have it"
            elif number > allowed:
                yield f"{section}.{name} is {number}, {number - allowed} more than its budget of {allowed}"


def lowered(found: Budget, budget: Budget) -> Budget:
    """The budget with each number at most what was found; rooms that are gone are left out."""
    return {
        section: {
            name: min(number, budget.get(section, {}).get(name, number)) for name, number in numbers.items()
        }
        for section, numbers in found.items()
    }


def _files(folder: str, pattern: str) -> list[Path]:
    """Files of the repository, new ones included, that are not ignored."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", f"{folder}/{pattern}"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]


def _sources(folder: str) -> list[Path]:
    return _files(folder, "*.py")


def _lines(paths: list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def _words(paths: list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths)


def _lines_by_room(paths: list[Path]) -> dict[str, int]:
    rooms: dict[str, list[Path]] = {}
    for path in paths:
        parts = path.relative_to(ROOT / "ptq_cli").parts
        rooms.setdefault(parts[0] if len(parts) > 1 else "ptq_cli", []).append(path)
    return {room: _lines(files) for room, files in sorted(rooms.items())}


def _parameters(path: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and not _is_signature(node):
            given = node.args
            names = [item.arg for item in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            yield len([name for name in names if name not in ("self", "cls")])


def _is_signature(node: ast.FunctionDef) -> bool:
    """Whether the parameters are the options of a command."""
    calls = [item.func if isinstance(item, ast.Call) else item for item in node.decorator_list]
    return any(isinstance(call, ast.Attribute) and call.attr == "command" for call in calls)


def _options() -> Mapping[str, int]:
    import click

    from ptq_cli.cli.main import COMMANDS, cli

    context = click.Context(cli)
    found = {}
    for name in COMMANDS:
        command = cli.get_command(context, name)
        options = command.params if command is not None else []
        own = {item.name for item in options if isinstance(item, click.Option) and not item.hidden}
        found[name] = len(own - OF_ALL)
    return found


def _keys() -> int:
    from ptq_cli.recipe.assignments import list_keys

    return len(list_keys())


def main() -> int:
    """Print what exceeds the budget; return 1 if anything does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lower", action="store_true", help="lower the numbers that are larger than need be")
    lower = parser.parse_args().lower
    budget = tomllib.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    found = measured()
    if lower:
        FILE.write_text(tomli_w.dumps(lowered(found, budget)), encoding="utf-8")
        return 0
    faults = list(exceeded(found, budget))
    print(
        "\n".join(faults) or f"the house is within its budget: {found['package']['lines']:,} lines of package"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
