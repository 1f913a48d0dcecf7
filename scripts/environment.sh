# Sourced by the other scripts: prepares the checkout's virtual environment and finds a C++ compiler for the cpu target.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
python=$venv/bin/python

fail() {
    printf 'error: %s\n' "$1" >&2
    shift
    (($#)) && printf '%s\n' "$@" >&2
    exit 1
}

is_new_enough() { "$1" -P -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# Prints the command of a Python that is new enough; prints nothing if there is none.
find_python() {
    local candidate
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        if is_new_enough "$candidate"; then echo "$candidate" && return; fi
    done
}

# Creates $venv if it is missing. Then installs this checkout with extras, such as "[mpi]", and a dependency group, such as
# dev ("": none), if pyproject.toml has changed since the last installation: a second run is fast and needs no network.
prepare_venv() {
    local extras=$1 group=$2 base
    if [[ ! -x $python ]]; then
        base=$(find_python)
        [[ -n $base ]] || fail "vpps needs Python 3.11 or newer, found $(python3 --version 2>/dev/null || echo none)." \
            "Install one (apt-get install python3.11 python3.11-venv, brew install python, conda create -n vpps python=3.12)."
        "$base" -P -m venv "$venv" >/dev/null || {
            rm -rf "$venv"
            fail "$base cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv"
        }
    fi
    is_new_enough "$python" || fail "$venv has no working Python 3.11 or newer: remove that folder and run again."

    if ! find_compiler; then
        echo "no C++ compiler on this machine: using the one of the ziglang package"
        "$python" -P -m pip install --quiet --disable-pip-version-check 'ziglang>=0.15'
        CXX=$("$python" -P -c 'import pathlib, shlex, ziglang; print(shlex.quote(str(pathlib.Path(ziglang.__file__).with_name("zig"))), "c++")')
        export CXX  # otherwise pip would install ziglang again for its build
    fi
    local installed=$venv/.installed$extras$group
    if [[ ! -f $installed || $(<"$root/pyproject.toml") != "$(<"$installed")" ]]; then
        echo "installing vpps$extras${group:+ with group $group} into $venv ..."
        echo "A checkout compiles planner, recorder and cpu kernel once, in half a minute. A wheel (scripts/build-wheels) contains them."
        install_checkout "$extras" "$group" || fail "pip could not install vpps$extras into $venv: see its message above."
        cp "$root/pyproject.toml" "$installed"
    fi
    # A pull may have changed sources; if not, this returns at once.
    "$python" -P -m vpps.installation >/dev/null || fail "the planner and recorder do not compile: see the message above."
}

# $1: extras, $2: a dependency group. pip knows groups from 25.1 on; if it cannot be upgraded, it gets their requirements.
install_checkout() {
    local pip=("$python" -P -m pip install --quiet --disable-pip-version-check)
    knows_groups() { [[ $("${pip[@]}" --help) == *--group* ]]; }  # grep -q would break the pipe
    if [[ -z $2 ]]; then
        "${pip[@]}" --editable "$root$1"
    elif knows_groups || { "${pip[@]}" --upgrade 'pip>=25.1' && knows_groups; }; then
        "${pip[@]}" --editable "$root$1" --group "$root/pyproject.toml:$2"
    else
        "${pip[@]}" --editable "$root$1" --requirement <("$python" -P -c 'import sys, tomllib
groups = tomllib.load(open(sys.argv[1], "rb"))["dependency-groups"]
listed = lambda name: [r for g in groups[name] for r in (listed(g["include-group"]) if isinstance(g, dict) else [g])]
print(*listed(sys.argv[2]), sep="\n")' "$root/pyproject.toml" "$2")
    fi
}

# Installs another NVRTC once, for tests/kernel/test_nvrtc_versions.py: $1 is the folder's name, $2 is the package. Without a
# network those tests skip, with a message.
prepare_nvrtc() {
    local folder=$venv/nvrtc/$1
    [[ $(uname -s) == Linux && ! -d $folder ]] || return 0
    echo "installing $2 into $folder ..."
    "$python" -P -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder.new" "$2" &&
        mv "$folder.new" "$folder" || echo "pip could not install $2: tests with it will skip"
}

# Succeeds if this machine has a compiler: CXX, g++ or clang++, in the order that vpps uses; vpps tries ziglang last.
find_compiler() {
    local first
    # Words in CXX may be quoted; xargs splits them as vpps does.
    if read -r first < <(xargs -n 1 <<<"${CXX:-}" 2>/dev/null) && command -v "$first" >/dev/null; then return 0; fi
    g++ --version &>/dev/null || clang++ --version &>/dev/null # on macOS these may be stubs that fail
}

# Installs system packages in a bare CI container, never on a developer's machine.
install_in_ci() {
    [[ ${CI:-} == true && $(id -u) == 0 ]] && command -v apt-get >/dev/null || return 0
    echo "installing $* ..."
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >/dev/null
}
