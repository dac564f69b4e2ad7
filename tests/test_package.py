"""What scripts/package.py refuses. (`make package` builds the real thing, and checks it.)"""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.site.test_site import script

package = script("package")


def test_a_wheel_without_a_file_of_the_package_is_refused(tmp_path: Path) -> None:
    files = [
        path for path in (package.ROOT / "wheel_lock").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    wheel = tmp_path / "wheel_lock-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in files:
            archive.write(path, path.relative_to(package.ROOT))
        archive.write(package.ROOT / package.PROGRAM, package.PROGRAM)
        archive.writestr("wheel_lock-0.dist-info/METADATA", "")
    package.check_wheel(wheel)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("wheel_lock/left.tmp", "")
    with pytest.raises(package.Wrong, match=r"should not have \['wheel_lock/left\.tmp'\]"):
        package.check_wheel(wheel)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("wheel_lock/__init__.py", "")
    with pytest.raises(package.Wrong, match=r"lacks .*'wheel_lock/protocol/lua/renew\.lua'"):
        package.check_wheel(wheel)


@pytest.mark.parametrize(
    ("extra", "message"),
    [("secrets.txt", r"should not have \['secrets\.txt'\]"), ("bench/__pycache__/x.pyc", "left behind")],
)
def test_an_sdist_with_anything_else_is_refused(tmp_path: Path, extra: str, message: str) -> None:
    sdist = tmp_path / "wheel_lock-0.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name in [*package.IN_SDIST, extra]:
            path = (
                name
                if "." in name.strip(".") or name in ("LICENSE", "Makefile", ".gitignore", "PKG-INFO")
                else f"{name}/x"
            )
            archive.addfile(tarfile.TarInfo(f"wheel_lock-0/{path}"), io.BytesIO())
    with pytest.raises(package.Wrong, match=message):
        package.check_sdist(sdist, tmp_path)


def test_required_packages_are_those_of_the_extra_only_with_the_extra() -> None:
    assert {"redis", "hiredis", "sortedcontainers"} <= set(package.requirements("wheel-lock"))
    assert "typer" not in package.requirements("wheel-lock")
    assert "typer" in package.requirements("wheel-lock", "cli")
