from __future__ import annotations

import pytest

from scripts.weekly import main


@pytest.mark.parametrize("words", [["--help"], ["--scirpt"]])
def test_help_and_a_mistake_start_nothing(words, capsys):
    with pytest.raises(SystemExit):
        main(words)
    out, err = capsys.readouterr()
    assert "--script" in out + err and "starting" not in out
