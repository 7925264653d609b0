import pytest


@pytest.fixture(scope="session")
def target():
    from ptq_cli.plan.target.target_file import load_target

    return load_target("ort-cpu")
