"""The README's example does what the README says."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_example_prints_what_the_readme_says() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (said,) = re.findall(r"^prints `(.*)`", README, re.MULTILINE)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == said
