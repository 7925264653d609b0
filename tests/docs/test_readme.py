"""README.md says the same in each of its forms, and names what is there."""

import re
from pathlib import Path

from ptq_cli.setup.resolve import Request, resolve
from tools.pages.folders import make
from tools.pages.page_blocks import blocks

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_recipe_says_what_the_flags_above_it_say(tmp_path: Path) -> None:
    make("digits", tmp_path)
    flags = {"data": "calib.npz", "eval_data": "eval.npz", "metric": ["top1"], "max_drop": {"top1": 0.05}}
    request = Request(settings=flags, model=Path("model.onnx"), folder=tmp_path)
    wanted = resolve(request).recipe
    (text,) = [block.text for block in blocks(README) if block.language == "toml"]
    (tmp_path / "ptq.toml").write_text(text, encoding="utf-8")
    assert resolve(Request(settings={}, folder=tmp_path)).recipe == wanted


def test_no_block_leaves_the_folder_in_which_it_was_pasted() -> None:
    pasted = [block for block in blocks(README) if block.language in ("bash", "console")]
    lines = [line for block in pasted for line in block.text.splitlines()]
    assert len(pasted) > 3
    assert [line for line in lines if re.match(r"(\$ )?(cd|pushd|exec) ", line)] == []


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for name in ("README.md", "CONTRIBUTING.md", "docs/ARCHITECTURE.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        named = set(re.findall(r"^make ([\w-]+)", text, re.MULTILINE)) | set(
            re.findall(r"`make ([\w-]+)`", text)
        )
        assert named <= targets, name
    assert {"demo", "test"} <= targets


def test_each_measured_part_names_its_command() -> None:
    parts = re.findall(r"<!-- (\w+):begin -->\n(.*?)\n<!-- \1:end -->\n\n([^\n]*)", README, re.DOTALL)
    assert [name for name, _, _ in parts] == ["samples"]
    for name, content, after in parts:
        module = re.search(r"`python -m ([\w.]+)`", after)
        assert content and module, name
        assert (ROOT / f"{module[1].replace('.', '/')}.py").is_file()
