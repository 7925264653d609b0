from pathlib import Path

import pytest

from tests.each_case import each_case


def test_all_cases_run_and_those_that_fail_are_named():
    seen = []

    @each_case(
        "number, wanted", [(1, 1), (2, 3), pytest.param(4, 4, id="four"), pytest.param(5, 6, id="five")]
    )
    def check(number, wanted):
        seen.append(number)
        assert number == wanted

    with pytest.raises(ExceptionGroup, match=r"2 of 4 cases: \[1\] 2, 3; \[3\] five") as caught:
        check()
    assert seen == [1, 2, 4, 5]
    assert [error.__notes__ for error in caught.value.exceptions] == [["case 2, 3"], ["case five"]]


def test_a_refusal_that_does_not_come_is_a_failure_of_its_case():
    @each_case("text", ["1", "x"], ids=["a number", "a word"])
    def check(text):
        with pytest.raises(ValueError, match="x"):
            int(text)

    with pytest.raises(BaseExceptionGroup, match=r"1 of 2 cases: \[0\] a number"):
        check()


def test_a_case_that_is_skipped_hides_no_other():
    @each_case("text", ["1", "x"])
    def check(text):
        if text == "1":
            pytest.skip("not here")
        int(text)

    with pytest.raises(BaseExceptionGroup, match="1 of 2 cases"):
        check()


def test_a_test_is_skipped_with_all_its_cases():
    @each_case("text", ["1", "x"])
    def check(text):
        pytest.skip("not here")

    with pytest.raises(pytest.skip.Exception):
        check()


@each_case("name", ["a", "b"])
def test_each_case_has_a_folder_and_patches_of_its_own(name, tmp_path, monkeypatch):
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text(name)
    assert Path.home != name
    monkeypatch.setattr(Path, "home", name)


def test_a_table_without_cases_is_refused():
    with pytest.raises(AssertionError, match="no cases"):
        each_case("name", [])
