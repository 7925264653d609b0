from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.recipe.locations import relative_location, resolve_location
from tests.each_case import each_case

FOLDER = Path("/srv/run")


@each_case(
    "text, resolved",
    [
        ("m.pt", "/srv/run/m.pt"),
        ("./m.pt", "/srv/run/m.pt"),
        ("../m.pt", "/srv/m.pt"),
        ("/m.pt", "/m.pt"),
        ("images/", "/srv/run/images"),
        (".", "/srv/run"),
        ("model.py:build", "/srv/run/model.py:build"),
        ("../src/model.py:build", "/srv/src/model.py:build"),
        ("/src/model.py:build", "/src/model.py:build"),
        ("package.module:build", "package.module:build"),
        ("folder/a:b", "/srv/run/folder/a:b"),
        ("~no-such-user/m.pt", "/srv/run/~no-such-user/m.pt"),
        ("~/m.pt", "/home/me/m.pt"),
        ("~/model.py:build", "/home/me/model.py:build"),
    ],
)
def test_location_becomes_absolute(monkeypatch, text, resolved):
    monkeypatch.setenv("HOME", "/home/me")
    assert resolve_location(text, FOLDER) == resolved


@each_case(
    "location, relative",
    [
        ("/srv/run/m.pt", "m.pt"),
        ("/srv/m.pt", "../m.pt"),
        ("/m.pt", "../../m.pt"),
        ("/srv/run", "."),
        ("/srv/src/model.py:build", "../src/model.py:build"),
        ("package.module:build", "package.module:build"),
        ("/srv/run/~", "./~"),
        ("/srv/run/~root/m.pt", "./~root/m.pt"),
        ("/srv/run/~x.py:build", "./~x.py:build"),
        ("/srv/run/a.b:c", "./a.b:c"),
    ],
)
def test_location_becomes_relative_and_absolute_again(location, relative):
    assert relative_location(location, FOLDER) == relative
    assert resolve_location(relative, FOLDER) == location


PARTS = st.text("ab~:.é ", min_size=1, max_size=6).filter(lambda part: part.strip(".") != "")


@given(parts=st.lists(PARTS, min_size=1, max_size=3))
def test_any_resolved_path_survives_the_way_there_and_back(parts):
    location = "/" + "/".join(parts)
    assert resolve_location(relative_location(location, FOLDER), FOLDER) == location
