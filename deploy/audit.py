"""`make audit`: known vulnerabilities in the locked dependencies, by pip-audit; and what it could not ask.

Exit code 1 if a vulnerability is known. What the network did not answer is told, and is a failure in CI only (CI=true):
elsewhere a machine without the internet is no reason to stop.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

LOCKS = [Path("requirements.lock"), Path("requirements-audit.lock")]
PIP_AUDIT = [
    *(sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"),
    *("--no-deps", "--disable-pip"),  # the locks are complete
]


def main() -> int:
    pinned = {line for lock in LOCKS for line in lock.read_text().splitlines() if "==" in line}
    requirements = [argument for lock in LOCKS for argument in ("--requirement", str(lock))]
    asked = subprocess.run([*PIP_AUDIT, *requirements], capture_output=True, text=True, check=False)
    if not asked.stdout.startswith("{"):
        return _unanswered(len(pinned), len(pinned), asked.stderr.strip().rpartition("\n")[2])
    found = json.loads(asked.stdout)["dependencies"]
    skipped = [one for one in found if "skip_reason" in one]
    for one in found:
        for vulnerability in one.get("vulns", ()):
            fixed = ", ".join(vulnerability["fix_versions"]) or "no version yet"
            print(f"{one['name']} {one['version']}: {vulnerability['id']}, fixed in {fixed}")
    if any(one.get("vulns") for one in found):
        return 1
    if skipped:
        return _unanswered(len(skipped), len(found), skipped[0]["skip_reason"])
    print(f"No vulnerability is known in {len(found)} locked packages.")
    return 0


def _unanswered(missing: int, count: int, reason: str) -> int:
    print(f"{missing} of {count} packages were NOT audited: {reason}")
    print("The network here does not give pip-audit what it needs: what PyPI knows of each version.")
    return 1 if os.environ.get("CI") == "true" else 0


if __name__ == "__main__":
    sys.exit(main())
