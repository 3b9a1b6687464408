"""The URL of a database outside of the run is passed to other hosts with the files that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config import outside_database
from agentrl.config.secrets import SecretRef
from agentrl.errors import ConfigError

REFERENCE = SecretRef("env:URL")


def test_url_names_the_files_of_the_other_host_and_is_otherwise_the_same(tmp_path: Path) -> None:
    own = tmp_path / "my own.pem"
    own.write_text("key and certificate")
    named = str(own).replace(" ", "%20")
    url = "mongodb://u:p%40s@a,b/?replicaSet=rs0&TLSCertificateKeyFile={}&authSource=$external&tls=true"
    read = outside_database.read(REFERENCE, {"URL": url.format(named)})
    assert "p%40s" not in repr(read)
    moved, files = outside_database.moved(read, Path("/there/mongo"))
    there = Path("/there/mongo/tlsCertificateKeyFile.pem")
    assert files == {there: "key and certificate"}
    assert moved == url.format(str(there).replace("/", "%2F"))
    plain = "mongodb+srv://u:p@set.example/runs"
    assert outside_database.moved(outside_database.read(REFERENCE, {"URL": plain}), Path("/x")) == (plain, {})


def test_missing_file_is_named_without_the_url() -> None:
    url = "mongodb://u:hidden@a/?tlsCAFile=/nowhere/authority.pem"
    with pytest.raises(ConfigError, match=r"names /nowhere/authority.pem as tlsCAFile, .*: No such file") as failed:
        outside_database.read(REFERENCE, {"URL": url})
    assert "hidden" not in str(failed.value)
