# Makes the project ready to run; sourced by ./test, ./check and ./run. Needs bash and Python 3.11 or newer, no more.
# Afterwards $root is the repository and $venv its environment.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/.venv"
uv_wanted="0.13"

say() { printf 'nextslot: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

find_python() {
    local candidate
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do
        # The real path, not a version manager's shim: uv remembers what it learnt about an interpreter by its path.
        "$candidate" -c 'import sys; sys.version_info >= (3, 11) or sys.exit(1); print(sys.executable)' 2>/dev/null && return
    done
    die "needs Python 3.11 or newer, and found none on PATH (Debian: apt-get install python3)"
}

uv_is_recent() {
    local version
    read -r _ version _ < <("$1" --version 2>/dev/null) || return 1
    [[ "$(printf '%s\n' "$uv_wanted" "$version" | sort -V | head -n 1)" == "$uv_wanted" ]]
}

find_uv() {
    local candidate
    for candidate in uv "$root/.cache/uv/uv"; do
        if uv_is_recent "$candidate"; then echo "$candidate"; return; fi
    done
    say "installing uv into .cache/uv"
    "$python" "$root/scripts/get_uv.py" "$root/uv.lock" "$root/.cache/uv" || die "could not install uv; install uv $uv_wanted or newer by hand and try again"
    echo "$root/.cache/uv/uv"
}

use_a_writable_cache() {
    [[ -n "${UV_CACHE_DIR:-}" ]] && return
    local home="${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}"
    mkdir -p "$home/uv" 2>/dev/null && [[ -w "$home/uv" ]] || export UV_CACHE_DIR="$root/.cache/packages"
}

# install PACKAGE why: a Debian package, where we may.
install() {
    if [[ "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then
        say "installing $1, which $2"
        apt-get update -qq >/dev/null 2>&1 || true
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >/dev/null 2>&1 && return
    fi
    say "there is no $1, which $2 (apt-get install $1)"
}

# The language model's library is built with OpenMP, whose runtime a small Debian lacks. Call after `prepare`.
prepare_language_model() {
    "$venv/bin/python" -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' 2>/dev/null || install libgomp1 "the small language model needs"
}

prepare_browser() {
    command -v chromium >/dev/null || install chromium "the browser tests need"
}

# The JavaScript client of the gateway's tests; npm installs it.
prepare_javascript() {
    [[ "${CI:-}" == true ]] || return 0  # On a laptop, those tests are skipped.
    command -v node >/dev/null || install nodejs "tests of the gateway's JavaScript client need"
    command -v npm >/dev/null || install npm "tests of the gateway's JavaScript client need"
}

# Prometheus' own tool, which tries the alert rules.
prepare_monitoring() {
    [[ "${CI:-}" == true ]] || return 0  # On a laptop, those tests are skipped.
    command -v promtool >/dev/null || install prometheus "tests of the alert rules need"
}

prepare_sandbox() {
    command -v bwrap >/dev/null || install bubblewrap "sandboxes of commands need"
}

# A C compiler, and network namespaces: disks that fail below a process, and machines of their own.
prepare_chaos() {
    command -v gcc >/dev/null || install gcc "tests of disks that fail need"
    [[ -e /usr/include/stdio.h ]] || install libc6-dev "tests of disks that fail need"
    command -v ip >/dev/null || install iproute2 "tests of several machines need"
}

# A real Slurm, whose daemons the engines' tests start on loopback.
prepare_slurm() {
    [[ "${CI:-}" == true || "$(id -u)" == 0 ]] || return 0  # Only root can run it: elsewhere, those tests are skipped.
    command -v slurmctld >/dev/null || install slurm-wlm "tests of engines need"
    command -v munged >/dev/null || install munge "tests of engines need"
}

# prepare [uv sync arguments]
prepare() {
    python="$(find_python)" || exit 1
    uv="$(find_uv)" || exit 1
    use_a_writable_cache
    unset VIRTUAL_ENV
    # UV: for the test that builds the wheel, which finds it nowhere else where it is not on PATH.
    export UV="$uv" UV_PYTHON="${UV_PYTHON:-$python}" UV_PYTHON_DOWNLOADS=never UV_PROJECT_ENVIRONMENT="$venv"
    [[ -d "$venv" ]] || say "setting up .venv (the first time takes a minute)"
    "$uv" sync --project "$root" --locked --quiet "$@" && return
    die "'uv sync --locked' failed, see above. Most often: a download failed (check the way to PyPI)," \
        "or uv.lock does not fit pyproject.toml or your own package index (run 'uv lock')."
}
