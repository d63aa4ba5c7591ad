"""What the command line says when it ends early."""

from __future__ import annotations

import pytest

from planewise import cli


def test_ctrl_c_ends_with_130_and_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", ["planewise", "search", "--synthetic", "list"])
    monkeypatch.setattr("planewise.commands.search._print_catalogue", interrupted)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 130
    assert capsys.readouterr().err.strip() == "stopped"
