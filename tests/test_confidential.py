"""What counts as a file that may hold a secret, and what does not."""

from __future__ import annotations

import pytest

from xc_core.confidential import why_confidential

NAME, KEY, SETTING = "named as files with secrets are", "holds a key or a token", "holds a password, a key or a login"


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        (".env", "", NAME),
        ("deep/.ENV.production", "", NAME),
        ("deploy/prod.env", "", NAME),
        (".netrc", "", NAME),
        ("id_rsa", "", NAME),
        ("tls/server.key", "", NAME),
        ("client_secret_8.json", "", NAME),
        (".aws/config", "", NAME),
        ("secrets/token.txt", "", NAME),
        ("bin/.docker", "", ""),
        ("tests/test_secrets.py", "", ""),
        ("tokenizer.json", '{"password": 20786, "secret": 3595}', ""),
        ("tokenizer_config.json", '{"unk_token": "<unknown>", "sep_token": "[SEP]"}', ""),
        ("keys.txt", "monkey: banana", ""),
        ("notes.txt", "-----BEGIN " + "RSA PRIVATE KEY-----", KEY),
        ("cell.py", "key = '" + "AKIA" + "ABCDEFGHIJKLMNOP" + "'", KEY),
        ("cell.md", "hf_" + "a" * 34, KEY),
        ("a.ini", "db_password = opensesame", SETTING),
        ("a.json", '{"api_key": "opensesame"}', SETTING),
        ("a.sh", "export AWS_SECRET_ACCESS_KEY=opensesame", SETTING),
        ("a.yaml", "password: {env: XC_POSTGRES_PASSWORD}", ""),
        ("a.yaml", "password:\n  env: XC_POSTGRES_PASSWORD", ""),
        ("a.sh", "PASSWORD=$1 run", ""),
        ("a.toml", 'uri = "postgresql://me:opensesame@db/x"', SETTING),
        ("a.toml", 'uri = "https://t0ken@host/x"', SETTING),
        ("a.toml", 'uri = "https://host/x?mail=me@host"', ""),
        ("a.py", "password = ask(prompt)", ""),
        ("a.py", "uri = 'postgresql://me:' + password + '@db'", ""),
    ],
)
def test_names_and_contents_that_may_be_secret(name: str, content: str, why: str) -> None:
    assert why_confidential(name, content.encode()) == why


@pytest.mark.parametrize(
    ("variable", "value", "held"),
    [
        ("XC_POSTGRES_PASSWORD", "opensesame", "opensesame"),
        ("mlflow_tracking_token", "opensesame", "opensesame"),
        ("XC_API_KEY", "sesame-8", "sesame-8"),
        ("XC_ALERT_WEBHOOK", "https://hooks/T0/opensesame", "https://hooks/T0/opensesame"),
        ("MLFLOW_TRACKING_URI", "http://me:opensesame@tracking", "opensesame"),
    ],
    ids=["password", "token", "key", "webhook", "address"],  # pytest puts the name of a test into the environment
)
def test_a_secret_of_the_environment_is_found_in_any_file(
    variable: str, value: str, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert why_confidential("a.py", f"connect({held!r})".encode()) == f"holds the value of {variable}"
    assert why_confidential("a.py", b"connect(read())") == ""


def test_short_values_and_other_variables_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XC_POSTGRES_PASSWORD", "short")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "parallel1")
    assert why_confidential("a.py", b"short parallel1") == ""
