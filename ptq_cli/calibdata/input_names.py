"""Which array of the data belongs to which input of the model."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from ptq_cli.calibdata.dataset.dataset import ANONYMOUS, POSITION, Dataset
from ptq_cli.calibdata.dataset.labels import LABEL_NAMES
from ptq_cli.core.errors import DataNameError
from ptq_cli.core.known_names import did_you_mean

BRANCH = "use_cache_branch"
"""Input of exported decoders that have one branch for a cache and one without."""
FIXED_BRANCH = f"fix it, because a cache is empty before the first token: --input {BRANCH}=false"


def match_names(dataset: Dataset, wanted: Sequence[str]) -> dict[str, str]:
    """Return which of the data's arrays belongs to each of a model's inputs.

    Args:
        dataset: the data; its only array fits a model with one input, whatever its name.
        wanted: names of the model's inputs.

    Edge case:
        An array that is not an input is ignored where the data allows more arrays than the model takes.

    Raises:
        DataNameError: an input has no array, or an array is not an input.
    """
    for found, name in dataset.renamed.items():
        if name not in wanted and name not in LABEL_NAMES:
            raise DataNameError(
                f"--rename {found}={name}: the model has no input '{name}'{did_you_mean(name, list(wanted))}",
                hint=f"the model's inputs: {_quoted(wanted)}; labels are named '{LABEL_NAMES[0]}'",
            )
    places = [name for name in dataset.specs if name.startswith(POSITION)]
    if places:
        if len(places) not in (len(wanted), len(wanted) + 1):
            raise DataNameError(
                f"a batch of '{dataset.source}' has {len(places)} arrays without names, the model has "
                f"{len(wanted)} {'input' if len(wanted) == 1 else 'inputs'}: {_quoted(wanted)}",
                hint="yield the inputs in this order and the labels last, or a dict of arrays by name",
            )
        return dict(zip(wanted, places, strict=False))
    if list(dataset.specs) == [ANONYMOUS]:
        if len(wanted) != 1:
            raise DataNameError(
                f"the one array of '{dataset.source}' has no name, the model has {len(wanted)} inputs: "
                f"{_quoted(wanted)}",
                hint="save an .npz with one array for each input, by its name",
            )
        return {wanted[0]: ANONYMOUS}
    names = {name: name for name in wanted}
    if len(wanted) == 1 and wanted[0] not in dataset.specs:
        sole = next(iter(dataset.specs)) if len(dataset.specs) == 1 else wanted[0]
        names = {wanted[0]: sole if dataset.default_input is None else dataset.default_input}
    needed = {name: key for name, key in names.items() if not dataset.can_make(key)}
    if not (dataset.extras_allowed and all(key in dataset.specs for key in needed.values())):
        require_names(dataset.specs, needed, f"'{dataset.source}'")
    return names


def positional_label(dataset: Dataset, names: Mapping[str, str]) -> str | None:
    """Return the array that holds the labels where arrays have no names: the one after the inputs'.

    Args:
        dataset: the data.
        names: the data's arrays by the model's inputs, as ``match_names`` returns them.
    """
    used = set(names.values())
    return next((name for name in dataset.specs if name.startswith(POSITION) and name not in used), None)


def sole_notes(dataset: Dataset, names: Mapping[str, str]) -> Iterator[str]:
    """Yield a note if an array is taken for an input of another name, because there is one of each.

    Args:
        dataset: the data.
        names: the data's arrays by the model's inputs, as ``match_names`` returns them.
    """
    for name, found in names.items():
        if found not in (name, ANONYMOUS, dataset.default_input) and not found.startswith(POSITION):
            yield f"the array '{found}' of '{Path(dataset.source).name}' is used for the input '{name}'"


def require_names(found: Collection[str], wanted: Mapping[str, str], where: str) -> None:
    """Check that arrays are those of a model's inputs, and no others.

    Args:
        found: names of the arrays.
        wanted: the name of the array of each input.
        where: they are, for messages.

    Raises:
        DataNameError: an input has no array, or an array is not an input.
    """
    keys = list(wanted.values())
    unknown = [name for name in found if name not in keys]
    for key in keys:
        if key not in found:
            raise DataNameError(
                f"no array for input '{key}' in {where}, found {_quoted(list(found)) or 'none'}"
                f"{did_you_mean(key, unknown)}",
                hint=FIXED_BRANCH if key == BRANCH else _renaming(key, unknown),
            )
    if unknown:
        raise DataNameError(
            f"array '{unknown[0]}' of {where} is not an input of the model{did_you_mean(unknown[0], keys)}",
            hint=f"the model's inputs: {_quoted(wanted)}; labels are named 'label', or with "
            f"--rename {unknown[0]}=label",
        )


def _renaming(key: str, unknown: Sequence[str]) -> str:
    if not unknown:
        return "name each array as the model names its input"
    return f"name each array as the model names its input, or pass --rename {unknown[0]}={key}"


def _quoted(names: Mapping[str, object] | Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
