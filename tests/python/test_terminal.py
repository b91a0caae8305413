"""The progress of runs on a terminal, and where there is none."""

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios

import pytest
from support import MQQ, ROOT

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pseudo-terminals of Linux")

COLUMNS = 120
COMMAND = [MQQ, "calibrate", ROOT / "fixtures/digits_cnn.onnx", "--backend", "onnxruntime", "--data",
           ROOT / "calib_data/calib", "--preprocess", "half", "--threads", "1"]
# A stage, and steps that are done of all.
BAR = re.compile(r"(\S.*?) [█░▉▊▋▌▍▎▏ ]+ (\d+)/(\d+), .*eta")


def on_terminal(command, stdout=None):
    """Exit code, and all bytes that a terminal gets; stderr is one, and stdout where no file is given."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    environment = dict(os.environ, TERM="xterm-256color")
    child = subprocess.Popen([str(part) for part in command], stdin=theirs, stdout=stdout or theirs, stderr=theirs, env=environment)
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # Linux has no end of file here.
            break
        if not part:
            break
        written += part
    os.close(ours)
    return child.wait(), written.decode()


def screen(written):
    """The lines that the terminal shows in the end: text, ends of lines, moves to the left and up, clearing."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", written):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part.startswith("\x1b"):
            n = int(re.sub(r"\D", "", part) or 1)
            if part[-1] == "A":
                row = max(row - n, 0)
            elif part[-1] == "K":
                lines[row] = "" if n == 2 else lines[row][:column]
            elif part[-1] == "J":
                lines[row:] = [lines[row][:column]]
            else:
                assert part[-1] in "mhl", repr(part)
        else:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part):]
            column += len(part)
    return [line.rstrip() for line in lines]


def test_a_terminal_shows_a_bar_with_an_end_for_each_stage_and_none_in_the_end(tmp_path):
    code, written = on_terminal([*COMMAND, "--effort", "1", "--out-dir", tmp_path])
    assert code == 0, written
    bars = BAR.findall(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", written))
    stages = {stage.split("\r")[-1] for stage, _, _ in bars}
    assert len(stages) > 1 and any("calibration" in stage for stage in stages), stages
    for stage, done, n in bars:
        assert 0 <= int(done) <= int(n) and int(n) > 0, (stage, done, n)
    shown = screen(written)
    assert any("digits_cnn.onnxruntime.onnx" in line for line in shown), shown
    assert not any("eta" in line or "█" in line or "░" in line for line in shown), shown
    # Each bar fits into a line, or the terminal would keep a part of it.
    parts = re.split(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]", written)
    assert all(len(part) <= COLUMNS for part in parts if BAR.search(part))


def test_a_bar_does_not_outlive_an_error(tmp_path):
    bad = tmp_path / "data"
    bad.mkdir()
    for image in sorted((ROOT / "calib_data/calib").iterdir())[:8]:
        (bad / image.name).write_bytes(image.read_bytes())
    (bad / "zz.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    command = [MQQ, "calibrate", ROOT / "fixtures/digits_cnn.onnx", "--backend", "onnxruntime", "--data", bad, "--preprocess", "half",
               "--threads", "1", "--out-dir", tmp_path / "out"]
    code, written = on_terminal(command)
    shown = [line for line in screen(written) if line]
    assert code == 1 and shown[0].startswith("error: ") and "zz.png" in shown[0], shown
    assert not any("eta" in line or "█" in line or "░" in line for line in shown), shown


def test_nothing_of_it_is_written_elsewhere_nor_where_it_is_quiet(tmp_path):
    code, written = on_terminal([*COMMAND, "--effort", "1", "--quiet", "--out-dir", tmp_path / "quiet"])
    assert (code, written) == (0, "")
    with open(tmp_path / "stdout", "wb") as stdout:
        code, written = on_terminal([*COMMAND, "--effort", "1", "--json", "--out-dir", tmp_path / "json"], stdout)
    assert code == 0 and "\x1b" not in (tmp_path / "stdout").read_text() and BAR.search(written)
    ran = subprocess.run([*COMMAND, "--effort", "1", "--out-dir", tmp_path / "pipe"], capture_output=True, text=True)
    assert ran.returncode == 0
    for text in (ran.stdout, ran.stderr):
        assert not re.search(r"[\x00-\x08\x0b-\x1f]|█|░|eta ", text), text
