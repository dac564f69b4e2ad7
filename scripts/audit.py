"""Check the packages that requirements/dev.txt pins for known vulnerabilities, with pip-audit (`make audit`).

Ends with 1 and a line for each vulnerability if there is one. Without an advisory service - no network, a package index
that has none, no answer within AUDIT_LIMIT_S seconds (16) - nothing is known: that is said, and is no failure.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "dev.txt"
LIMIT_S = float(os.environ.get("AUDIT_LIMIT_S", "16"))
SERVICE_TIMEOUT_S = 4
SKIPPED = "audit: skipped: no advisory service"

Report = dict[str, Any]


class NoService(Exception):
    """There is no advisory service within reach; the text says how that was found out."""


def main(arguments: list[str]) -> int:
    """Audit `LOCK`; the arguments are handed to pip-audit."""
    end = time.monotonic() + LIMIT_S
    try:
        with tempfile.TemporaryDirectory() as folder:
            # One package first: where there is no service the others are not asked for.
            first = Path(folder) / "first.txt"
            first.write_text(pin_of("redis", LOCK.read_text()))
            audited(run(first, arguments, end))
            report = run(LOCK, arguments, end)
            audited(report)
    except NoService as error:
        print(f"{SKIPPED} ({error})")
        return 0
    text, vulnerable = verdict(report)
    print(text)
    return 1 if vulnerable else 0


def pin_of(package: str, lock: str) -> str:
    """Return the lines of one package in a lock file: its version and its hashes."""
    found = re.search(rf"^{package}==\S+ \\\n(?:    --hash=\S+(?: \\)?\n)+", lock, re.MULTILINE)
    if found is None:
        raise SystemExit(f"audit: {LOCK.name} does not pin {package}")
    return found[0]


def run(requirements: Path, arguments: list[str], end: float) -> Report:
    """Return what pip-audit reports on a file with hashes. It installs nothing and runs none of the packages' code."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(requirements), "--require-hashes"]
        command += ["--disable-pip", "--progress-spinner", "off", "--timeout", str(SERVICE_TIMEOUT_S)]
        command += ["--format", "json", "--output", str(output), *arguments]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=max(end - time.monotonic(), 0.1),
            )
        except subprocess.TimeoutExpired:
            raise NoService(f"no end after {LIMIT_S:g} s") from None
        if output.exists():
            report: Report = json.loads(output.read_text())
            return report
    last_line = (done.stderr.strip() or "no report").splitlines()[-1]
    # A failure to connect may end in a traceback of the HTTP library's. All else is a failure of this check.
    if re.search(r"connect|timed? ?out|proxy|ssl|resol|unreachable|service|HTTP", last_line, re.IGNORECASE):
        raise NoService(last_line[:300])
    raise SystemExit(f"audit: pip-audit failed:\n{done.stderr.strip()}")


def audited(report: Report) -> None:
    """Raise NoService if the service knows none of the packages: it is an index without advisories."""
    packages = report["dependencies"]
    if packages and all("skip_reason" in package for package in packages):
        raise NoService(packages[0]["skip_reason"])


def verdict(report: Report) -> tuple[str, bool]:
    """Return what to say of a report, and whether there is a vulnerability in it."""
    lines = []
    unknown = [package["name"] for package in report["dependencies"] if "skip_reason" in package]
    for package in report["dependencies"]:
        for found in package.get("vulns", ()):
            others = ", ".join([found["id"], *found.get("aliases", ())])
            mended = ", ".join(found.get("fix_versions", ())) or "no version yet"
            lines.append(f"audit: {package['name']} {package['version']}: {others}; mended in {mended}")
    vulnerable = bool(lines)
    if not vulnerable:
        lines.append(f"audit: no known vulnerability in {len(report['dependencies']) - len(unknown)} packages")
    if unknown:
        lines.append(f"audit: the advisory service does not know {', '.join(unknown)}")
    return "\n".join(lines), vulnerable


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
