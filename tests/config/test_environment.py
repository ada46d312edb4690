import pytest

from config.environment import Environment
from workspaces.errors import ConfigurationError


def env(**values: str) -> Environment:
    return Environment(values)


@pytest.mark.parametrize(("given", "read"), [("true", True), ("1", True), (" Yes ", True), ("off", False), ("", True)])
def test_a_flag_reads_the_usual_spellings_and_empty_is_unset(given: str, read: bool):
    assert env(DEBUG=given).flag("DEBUG", default=True) is read


@pytest.mark.parametrize(
    ("name", "value"),
    [("DEBUG", "maybe"), ("PORT", "80a"), ("PORT", "70000"), ("PORT", "80.5"), ("PORT", "nan"), ("PORT", "-1")],
)
def test_a_bad_value_is_refused_with_its_name_and_itself(name: str, value: str):
    with pytest.raises(ConfigurationError) as refused:
        if name == "DEBUG":
            env(DEBUG=value).flag("DEBUG", default=False)
        else:
            env(PORT=value).integer("PORT", default=8000, minimum=1, maximum=65_535)
    assert refused.value.details["setting"] == name
    assert value in str(refused.value.details["hint"])


def test_a_required_variable_says_how_to_get_one():
    with pytest.raises(ConfigurationError) as refused:
        env(SECRET_KEY="  ").required("SECRET_KEY", hint="run make")
    assert refused.value.details == {"setting": "SECRET_KEY", "hint": "run make"}


def test_words_drop_blanks_and_empty_items():
    assert env(ALLOWED_HOSTS=" a, ,b,").words("ALLOWED_HOSTS") == ["a", "b"]
