"""What set-up and tests fetch is locked, checked, and audited; and rights are raised for it only with consent."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.interop.redis_pys_source import download
from tests.interop.redisson_jars import CHECKSUMS, unexpected
from tests.interop.redisson_peer import redisson_version
from tests.support.background import Background
from tests.support.pinned_requirements import REQUIREMENTS, Pin, pins

ROOT = Path(__file__).parents[1]
THIS_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
RUN_TIMEOUT_S = 100.0


def project() -> dict[str, list[str]]:
    """What pyproject.toml asks for: of the extras, of the package itself and for its build."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    itself, extras = settings["project"], settings["project"]["optional-dependencies"]
    always = [*itself["dependencies"], *settings["build-system"]["requires"]]
    demo = [*always, *extras["demo"], *extras["cli"]]
    oldest = [text for text in always if Requirement(text).name != "redis"]
    oldest += [*extras["demo"], *extras["valkey"]]
    return {
        "oldest.txt": oldest,
        "demo.txt": demo,
        "dev.txt": [*demo, *extras["dev"]],
        "classifiers": itself["classifiers"],
    }


@pytest.mark.parametrize("lock", ["dev.txt", "demo.txt", "oldest.txt"])
def test_all_that_the_project_asks_for_is_locked(lock: str) -> None:
    locked = {(pin.package, pin.version) for pin in pins(lock)}
    for text in project()[lock]:
        wanted = Requirement(text)
        name = canonicalize_name(wanted.name)
        if name != "wheel-lock":
            versions = [version for package, version in locked if package == name]
            assert versions, f"{lock} does not pin {text}: make lock"
            assert all(version in wanted.specifier for version in versions), f"{lock} is older than {text}: make lock"


@pytest.mark.parametrize("lock", ["dev.txt", "demo.txt", "oldest.txt"])
def test_a_lock_holds_for_all_supported_pythons_and_names_no_package_index(lock: str) -> None:
    text = (REQUIREMENTS / lock).read_text()
    supported = [line.rpartition(" :: ")[2] for line in project()["classifiers"] if " :: 3." in line]
    assert text.splitlines()[0] == f"# python: {' '.join(supported)}"
    assert "://" not in text
    assert "index" not in text
    assert "find-links" not in text


def test_the_demo_has_the_versions_of_development() -> None:
    development = set(pins("dev.txt"))
    # A package that the demo needs on some systems only may be needed on all of them for development.
    missing = [pin for pin in pins("demo.txt") if not {pin, pin._replace(marker="")} & development]
    assert missing == []


def test_the_oldest_redis_py_is_the_oldest_that_is_allowed_and_all_else_is_as_in_development() -> None:
    oldest, development = ({pin.package: pin.version for pin in pins(name)} for name in ("oldest.txt", "dev.txt"))
    (wanted,) = (text for text in project()["demo.txt"] if Requirement(text).name == "redis")
    assert f">={oldest.pop('redis')}" in str(Requirement(wanted).specifier)
    assert oldest.items() <= development.items()


# --- set-up ---


def write_wheel(folder: Path, name: str) -> None:
    with ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{name}-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        wheel.writestr(f"{name}-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.dist-info/RECORD", "")


def site_packages(tree: Path) -> Path:
    return next((tree / ".venv").glob("lib/python*/site-packages"))


def stamp(tree: Path) -> None:
    """Note that an earlier set-up has made the environment, from other files. A set-up that fails removes that."""
    (tree / ".venv" / "wheel_lock.stamp").write_text(f"demo of-other-files {tree}\n")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project with one locked package, `thing`, which is in the folder that pip finds packages in."""
    tree = tmp_path / "tree"
    (tree / "scripts").mkdir(parents=True)
    (tree / "requirements").mkdir()
    shutil.copy(ROOT / "scripts" / "setup.sh", tree / "scripts")
    (tree / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (tree / "backend.py").write_text(
        "import shutil\n"
        "def build_editable(into, config_settings=None, metadata_directory=None):\n"
        "    return shutil.copy('../project-1-py3-none-any.whl', into).rpartition('/')[2]\n"
    )
    write_wheel(tmp_path, "project")
    # An environment as an earlier set-up has left it, only that it borrows the pip of the one that runs the tests.
    venv.create(tree / ".venv", symlinks=True)
    (site_packages(tree) / "pip").symlink_to(Path(sysconfig.get_path("purelib")) / "pip")
    stamp(tree)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    write_wheel(wheels, "thing")
    return tree


def lock(tree: Path, sha256: str, python: str = THIS_PYTHON) -> None:
    (tree / "requirements" / "demo.txt").write_text(f"# python: {python}\nthing==1 \\\n    --hash=sha256:{sha256}\n")


def set_up(tree: Path, what: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    environment |= {"PYTHON": sys.executable, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tree.parent / "wheels")}
    return subprocess.run(
        ["bash", str(tree / "scripts" / "setup.sh"), what],
        env=environment | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
    )


@pytest.mark.slow
def test_a_package_with_another_sha256_is_not_installed(tree: Path) -> None:
    lock(tree, "0" * 64)
    done = set_up(tree, "demo")
    assert done.returncode == 1
    assert "a download has another sha256 than the one in requirements/demo.txt" in done.stderr
    assert not (site_packages(tree) / "thing.py").exists()
    wheel = tree.parent / "wheels" / "thing-1-py3-none-any.whl"
    lock(tree, hashlib.sha256(wheel.read_bytes()).hexdigest())
    stamp(tree)
    done = set_up(tree, "demo")
    assert done.returncode == 0, done.stderr
    assert (site_packages(tree) / "thing.py").exists()
    assert set_up(tree, "demo").stderr == "", "there is nothing left to do"


@pytest.mark.parametrize(
    ("python", "variables", "said"),
    [
        ("3.10 3.99", {}, f"requirements/demo.txt is not made for Python {THIS_PYTHON}: the newest versions"),
        (THIS_PYTHON, {"LOCKED": "no"}, "LOCKED=no: the newest versions"),
    ],
)
def test_what_goes_without_the_lock_says_so(tree: Path, python: str, variables: dict[str, str], said: str) -> None:
    lock(tree, "0" * 64, python)
    (site_packages(tree) / "pip").unlink()
    (site_packages(tree) / "pip.py").write_text("import sys; sys.exit(f'pip {sys.argv[1:]}')\n")
    done = set_up(tree, "demo", **variables)
    assert said in done.stderr
    assert "none of them checked against a sha256" in done.stderr
    assert "'-e', '.[demo,cli]']" in done.stderr
    assert "could not install wheel-lock[demo,cli]" in done.stderr


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A PATH with what setup.sh needs, no redis-server, and a sudo and an apt-get that note how they are called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "cat", "dirname", "env", "flock", "mktemp", "rm", "tail"):
        path = shutil.which(name)
        if path is not None:
            (folder / name).symlink_to(path)
    for name, body in {
        "id": "echo 1000",
        "sudo": f'echo "$*" >>{tmp_path}/sudo; "$@"',
        "apt-get": f'echo "$*" >>{tmp_path}/apt-get',
    }.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (folder / name).chmod(0o755)
    return folder


def test_no_rights_are_raised_unasked_for_a_redis_server(tree: Path, commands: Path) -> None:
    done = set_up(tree, "redis", PATH=str(commands))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "wheel_lock: the tests need a redis-server, and none is installed; on Debian: make setup-redis SUDO=sudo "
        "(or name one with REDIS_SERVER=/path/to/redis-server)"
    ]
    assert not (commands.parent / "sudo").exists()
    server = tree / "valkey-server"
    done = set_up(tree, "redis", PATH=str(commands), REDIS_SERVER=str(server))
    assert done.stderr == f"wheel_lock: REDIS_SERVER={server}: there is no such program\n"
    (commands / "cp").symlink_to(shutil.which("cp") or "/bin/cp")
    shutil.copy(commands / "id", server)
    assert set_up(tree, "redis", PATH=str(commands), REDIS_SERVER=str(server)).returncode == 0
    assert not (commands.parent / "apt-get").exists()
    installs = f"cp {commands}/id {commands}/redis-server"
    (commands / "apt-get").write_text(f"#!/usr/bin/env bash\ncase $* in *redis-server*) {installs};; esac\n")
    done = set_up(tree, "redis", PATH=str(commands), SUDO="sudo")
    assert done.returncode == 0, done.stderr
    assert "install -y --no-install-recommends redis-server" in (commands.parent / "sudo").read_text()


# --- what tests fetch ---


def test_a_source_with_another_sha256_fails_even_on_a_laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stranger-1.0.tar.gz").write_bytes(b"not what it was")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(pytest.fail.Exception, match=r"stranger==1\.0 has another sha256"):
        download(Pin("stranger", "1.0", "", ("0" * 64,)), into)


def test_jars_that_are_not_those_of_the_list_are_named(tmp_path: Path) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    listed = tmp_path / "jars.sha256"
    texts = {"a.jar": b"a", "b.jar": b"b"}
    listed.write_text("".join(f"{hashlib.sha256(text).hexdigest()}  {name}\n" for name, text in texts.items()))
    for name, text in texts.items():
        (jars / name).write_bytes(text)
    assert unexpected(jars, listed) == []
    (jars / "a.jar").write_bytes(b"changed")
    (jars / "b.jar").rename(jars / "c.jar")
    changed = hashlib.sha256(b"changed").hexdigest()
    assert unexpected(jars, listed) == [f"a.jar has sha256 {changed}", "b.jar is missing", "c.jar has no sha256 there"]


def test_the_jars_are_listed_for_the_redisson_that_is_asked_for() -> None:
    assert f"  redisson-{redisson_version()}.jar\n" in CHECKSUMS.read_text()


# --- the audit ---

Answers = Callable[[str], list[dict[str, object]]]


@contextmanager
def advisories(known: Answers) -> Iterator[str]:
    """An advisory service on loopback that speaks OSV's interface: the vulnerabilities `known` of a package."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            vulns = known(asked["package"]["name"])
            answer = json.dumps({"vulns": vulns} if vulns else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = Background(server.serve_forever)
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/query"
        finally:
            server.shutdown()
            serving.result()


def audit(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "audit.py"), *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
    )


def ask(url: str) -> subprocess.CompletedProcess[str]:
    here = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "AUDIT_LIMIT_S": str(0.9 * RUN_TIMEOUT_S)}
    return audit("--vulnerability-service", "osv", "--osv-url", url, **here)


def advisory(package: str) -> list[dict[str, object]]:
    if package != "rich":
        return []
    ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "9999"}]}]
    affected = [{"package": {"name": "rich", "ecosystem": "PyPI"}, "ranges": ranges}]
    return [{"id": "TEST-1", "summary": "made up", "details": "", "aliases": ["CVE-0"], "affected": affected}]


@pytest.mark.slow
def test_a_known_vulnerability_is_a_failure_with_its_name() -> None:
    with advisories(advisory) as url:
        done = ask(url)
    (rich,) = (pin.version for pin in pins() if pin.package == "rich")
    assert done.stdout.splitlines()[0] == f"audit: rich {rich}: CVE-0, TEST-1; mended in 9999", (
        done.stdout + done.stderr
    )
    assert done.returncode == 1


@pytest.mark.slow
def test_without_an_advisory_service_the_audit_is_skipped_and_says_so() -> None:
    with advisories(lambda package: []) as url:
        pass
    done = ask(url)  # nothing listens there now
    assert done.stdout.startswith("audit: skipped: no advisory service ("), done.stdout + done.stderr
    assert done.returncode == 0
