#!/usr/bin/env bash
# What a make target needs before it can run:
#   setup.sh demo    .venv with the library and its command line
#   setup.sh dev     .venv with everything tests, linters and benchmarks use
#   setup.sh oldest  .venv-oldest with the oldest supported redis-py and what the tests of the kinds of locks use
#   setup.sh redis   a redis-server program
#   setup.sh databases  PostgreSQL and MariaDB, where they can be installed: the tests of guards skip without them
# Each is quick when there is nothing left to do. What comes from the package index has the version and the sha256 of
# requirements/*.txt. LOCKED=no goes without them; SUDO=sudo lets apt-get be run by whoever is not root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${1:-}" = oldest ]; then readonly VENV=.venv-oldest; else readonly VENV=.venv; fi
readonly STAMP=$VENV/wheel_lock.stamp
readonly OLDEST_MINOR=11

say() { printf 'wheel_lock: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# Two makes started at once must not both build .venv; .venv-oldest can be built beside it. The locks are on files that are
# there anyway, so they leave nothing behind.
wait_for_turn() {
    command -v flock >/dev/null || return 0
    if [ "$VENV" = .venv-oldest ]; then exec 9<requirements/oldest.txt; else exec 9<scripts/setup.sh; fi
    flock 9
}

# One apt-get at a time: its lists may be in the making. What builds .venv has this lock already.
wait_for_apt() {
    { command -v flock >/dev/null && [ "$VENV" = .venv-oldest ]; } || return 0
    exec 8<scripts/setup.sh
    flock 8
}

as_root() {
    # A daemon that a package starts must not inherit a lock, hence 8<&- and 9<&-.
    if [ "$(id -u)" = 0 ]; then
        "$@" </dev/null 8<&- 9<&-
    else
        $SUDO "$@" </dev/null 8<&- 9<&-
    fi
}

# Nobody's rights are raised unasked: not root, and no SUDO, means no.
can_install() {
    command -v apt-get >/dev/null || return 1
    [ "$(id -u)" = 0 ] || { [ -n "${SUDO:-}" ] && command -v "${SUDO%% *}" >/dev/null; }
}

apt_install() {
    can_install || return 1
    wait_for_apt
    say "installing $* with apt-get"
    local log status=0
    log=$(mktemp)
    # A failed update is not the end: one foreign source may be out of order, or the lists fresh enough.
    as_root apt-get -q update >"$log" 2>&1 || true
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 \
        install -y --no-install-recommends "$@" >>"$log" 2>&1 || status=$?
    exec 8<&-
    [ "$status" = 0 ] || tail -n 15 "$log" >&2
    rm -f "$log"
    return "$status"
}

minor_version() { # of a Python 3; nothing for anything else
    "$1" -c 'import sys; print(sys.version_info[1] if sys.version_info[0] == 3 else "")' 2>/dev/null || true
}

new_enough() {
    local minor
    minor=$(minor_version "$1")
    [ -n "$minor" ] && [ "$minor" -ge "$OLDEST_MINOR" ]
}

# PYTHON, or else python3, or else the newest versioned one: a machine whose python3 is old may have both.
choose_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        command -v "$PYTHON" >/dev/null || die "PYTHON=$PYTHON: there is no such program"
        new_enough "$PYTHON" ||
            die "PYTHON=$PYTHON is not a Python 3.$OLDEST_MINOR or newer; of itself it says:" \
                "$("$PYTHON" -V 2>&1 | head -n 1)"
        printf '%s\n' "$PYTHON"
        return
    fi
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null && new_enough "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    command -v python3 >/dev/null || die "Python 3.$OLDEST_MINOR or newer is needed, and there is no python3"
    die "Python 3.$OLDEST_MINOR or newer is needed, and python3 is $(python3 -V 2>&1);" \
        "name another one with PYTHON=/path/to/python3.$OLDEST_MINOR"
}

# Debian ships the venv module in python3 but the pip that fills a new environment in a package of its own.
ensure_venv_module() {
    local python=$1 package
    "$python" -c 'import ensurepip, venv' 2>/dev/null && return
    package=python3-venv
    if [ "$(readlink -f "$(command -v "$python")")" != "$(readlink -f /usr/bin/python3)" ]; then
        package=python3.$(minor_version "$python")-venv
    fi
    apt_install "$package" && "$python" -c 'import ensurepip, venv' 2>/dev/null && return
    die "$python cannot make virtual environments, and $package is not installed from here;" \
        "install it, on Debian with: sudo apt-get install $package"
}

# The stamp says what the environment holds, what it was made from, and where: console scripts contain absolute
# paths, so a copied tree needs an environment of its own. It is written last; an interrupted set-up has none.
setup_venv() {
    local kind=$1 extras=$2 sum python
    local made_kind='' made_sum='' made_at=''
    if [ -n "${PYTHON:-}" ]; then
        choose_python >/dev/null # a PYTHON that will not do is told even when .venv stands
    fi
    sum=$(cat pyproject.toml requirements/*.txt | cksum | tr ' ' -)-locked=${LOCKED:-yes}
    if [ -r "$STAMP" ]; then
        read -r made_kind made_sum made_at <"$STAMP" || true
    fi
    if [ "$made_at" = "$PWD" ] && venv_python_will_do; then
        # dev holds all that demo does
        if [ "$made_sum" = "$sum" ] && { [ "$made_kind" = "$kind" ] || [ "$made_kind" = dev ]; }; then
            return
        fi
    else
        python=$(choose_python)
        ensure_venv_module "$python"
        say "making $VENV with $("$python" -V)"
        rm -rf "$VENV"
        "$python" -m venv "$VENV" || die "$python could not make a virtual environment; its own words are above"
    fi
    rm -f "$STAMP"
    if [ "$kind" = oldest ] && [ "${LOCKED:-yes}" = no ]; then
        die "LOCKED=no: the oldest redis-py is installed as requirements/oldest.txt pins it, or not at all"
    elif locked "requirements/$kind.txt"; then
        install_locked "requirements/$kind.txt"
    else
        say "installing wheel-lock[$extras] into $VENV"
        pip_install -e ".[$extras]" || die "pip could not install wheel-lock[$extras]; its own words are above"
    fi
    printf '%s %s %s\n' "$kind" "$sum" "$PWD" >"$STAMP"
}

pip_install() {
    PIP_DISABLE_PIP_VERSION_CHECK=1 "$VENV/bin/python" -m pip install -q --no-input "$@" </dev/null
}

# Whether that lock file holds for the Python of .venv: its first line says for which it was made.
locked() {
    local lock=$1 version
    version=3.$(minor_version "$VENV/bin/python")
    if [ "${LOCKED:-yes}" = no ]; then
        say "LOCKED=no: the newest versions that pyproject.toml allows, none of them checked against a sha256"
        return 1
    fi
    case " $(head -n 1 "$lock") " in
        *" $version "*) return ;;
    esac
    say "$lock is not made for Python $version: the newest versions that pyproject.toml allows are installed," \
        "none of them checked against a sha256"
    return 1
}

# Wheels only, and the project itself without an isolated build: a build would fetch tools that no hash stands for.
install_locked() {
    local lock=$1 log
    say "installing what $lock pins into $VENV"
    log=$(mktemp)
    if ! pip_install --require-hashes --only-binary :all: -r "$lock" 2>"$log"; then
        cat "$log" >&2
        if grep -q 'DO NOT MATCH THE HASHES' "$log"; then
            rm -f "$log"
            die "a download has another sha256 than the one in $lock, see above: it was not installed." \
                "Somebody has changed the file, at the index or on the way; or else in $lock"
        fi
        rm -f "$log"
        die "pip could not install what $lock pins; its own words are above. It finds no version where the index cannot" \
            "be reached, and where that has no wheel for this machine: then LOCKED=no installs the newest versions that" \
            "pyproject.toml allows, unchecked"
    fi
    cat "$log" >&2
    rm -f "$log"
    pip_install --no-index --no-deps --no-build-isolation -e . ||
        die "pip could not install the project itself; its own words are above"
}

# Without PYTHON any environment that is new enough will do; with it, only one of that version.
venv_python_will_do() {
    new_enough "$VENV/bin/python" || return 1
    [ -z "${PYTHON:-}" ] || [ "$(minor_version "$PYTHON")" = "$(minor_version "$VENV/bin/python")" ]
}

setup_redis() {
    command -v "${REDIS_SERVER:-redis-server}" >/dev/null && return
    [ -z "${REDIS_SERVER:-}" ] || die "REDIS_SERVER=$REDIS_SERVER: there is no such program"
    # Its packages are the distribution's; apt-get checks them against the distribution's signatures.
    apt_install redis-server && command -v redis-server >/dev/null && return
    die "the tests need a redis-server, and none is installed; on Debian: make setup-redis SUDO=sudo" \
        "(or name one with REDIS_SERVER=/path/to/redis-server)"
}

# Not an end where they are missing and nobody lets them be installed: few tests need them.
setup_databases() {
    local missing=()
    compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || command -v postgres >/dev/null || missing+=(postgresql)
    command -v mariadbd >/dev/null || [ -x /usr/sbin/mariadbd ] || missing+=(mariadb-server-core)
    [ "${#missing[@]}" = 0 ] || apt_install "${missing[@]}" ||
        say "tests of guards will be skipped for want of ${missing[*]}; on Debian: make setup-databases SUDO=sudo"
}

wait_for_turn
case "${1:-}" in
    demo) setup_venv demo demo,cli ;;
    dev) setup_venv dev dev ;;
    oldest) setup_venv oldest demo,valkey ;;
    redis) setup_redis ;;
    databases) setup_databases ;;
    *) die "usage: scripts/setup.sh demo|dev|oldest|redis|databases" ;;
esac
