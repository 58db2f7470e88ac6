# shellcheck shell=bash
# Shared by the scripts of deploy/: Python, a virtual environment, libraries of the system.
# Everything is left alone when it is already there, so that a second run is quick.

export PIP_DISABLE_PIP_VERSION_CHECK=1

say() {
    printf '%s\n' "$*" >&2
}

die() {
    say "deploy: $*"
    exit 1
}

# The first Python that is new enough; PYTHON=... names another.
find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    die "Python 3.11 or newer is needed and was not found; PYTHON=/path/to/python3 names one"
}

# Packages of Debian and Ubuntu that $1 (a Python) needs for a virtual environment.
missing_for_venv() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null ||
        "$1" -c 'import sys; print("python3.%d-venv" % sys.version_info.minor)'
}

# The same for the bundled mongod, which exists for Linux on x86-64 only.
missing_for_mongod() {
    [ "$(uname -sm)" = "Linux x86_64" ] || return 0
    command -v mongod >/dev/null && return 0
    loads "$1" libcurl.so.4 || printf 'libcurl4\n'
    loads "$1" libcrypto.so.3 || printf 'libssl3\n'
}

loads() {
    "$1" -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$2" 2>/dev/null
}

# Install packages of the system where that is possible without asking, else say how.
install_packages() {
    [ "$#" -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null; then
        die "these are missing (names of Debian's packages); install them and run this again: $*"
    fi
    if [ "$(id -u)" -ne 0 ]; then
        die "libraries are missing; type this and run it again: sudo apt-get install -y $*"
    fi
    say "installing $*"
    # An old index may name versions that are gone, so it is read anew, but only when needed.
    if ! apt_install "$@" 2>/dev/null; then
        apt-get update -qq >&2
        apt_install "$@" || die "this did not work: apt-get install -y $*"
    fi
}

apt_install() {
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >/dev/null
}

# Say what the next minutes are for, if the virtual environment $1 is not there yet; fails if it is.
# $2: what it downloads.
say_first_time() {
    [ ! -e "$1/wanted.stamp" ] || return 1
    say "SluiceMQ sets itself up in $PWD/$1; the first time that downloads about $2"
}

# Set up the virtual environment $2 with the Python $1: see make_venv and install_project, whose arguments
# these are. One at a time in a checkout, for two would install over each other.
set_up() {
    wait_for_turn 8 "another set-up runs in $PWD; waiting for its end"
    make_venv "$1" "$2"
    install_project "${@:2}"
} 8<deploy/setup.sh

# Lock the file that is open as descriptor $1 until that is closed; say $2 if another process has it.
wait_for_turn() {
    command -v flock >/dev/null || return 0 # as on macOS: nothing is locked there
    flock --nonblock "$1" && return
    say "$2"
    flock "$1"
}

# Make the virtual environment $2 with the Python $1.
make_venv() {
    [ -x "$2/bin/python" ] && "$2/bin/python" -c '' 2>/dev/null && return
    say "making $2 with $("$1" --version)"
    rm -rf "$2"
    "$1" -m venv "$2"
}

# Install this project with the extra $2 into the virtual environment $1, and the packages in the
# folders after that, as far as they changed: all with pyproject.toml, only the packages themselves
# with their sources. With $editable set, changes of the sources are seen without another install.
install_project() {
    local venv=$1 extra=$2 wanted sources
    shift 2
    wanted=$(wanted_sum "$extra" "$@")
    sources=$(sources_sum)
    if [ "$(stamp "$venv" wanted)" != "$wanted" ]; then
        say "installing sluicemq[$extra] into $venv"
        if [ -n "${editable:-}" ] || is_editable "$venv"; then
            pip_install "$venv" --editable ".[$extra]" "${@/#/--editable=}"
        else
            pip_install "$venv" "setuptools>=77" wheel
            install_fresh "$venv" ".[$extra]" "$@"
        fi
    elif [ "$(stamp "$venv" sources)" != "$sources" ] && ! is_editable "$venv"; then
        say "installing the changed sources into $venv"
        install_fresh "$venv" --no-deps --force-reinstall . "$@"
    fi
    printf '%s\n' "$wanted" >"$venv/wanted.stamp"
    printf '%s\n' "$sources" >"$venv/sources.stamp"
}

# setuptools would also pack modules that are gone, if an earlier build left them in build/.
install_fresh() {
    local venv=$1
    shift
    rm -rf build bench/build
    pip_install "$venv" --no-build-isolation "$@"
    rm -rf build bench/build
}

# Install with the pip of $1, with a line for each package that is downloaded; all pip said if it fails.
pip_install() {
    local venv=$1 log
    shift
    log=$(mktemp)
    if ! "$venv/bin/pip" install --progress-bar off "$@" 2>&1 | tee "$log" | show_progress; then
        cat "$log" >&2
        rm -f "$log"
        die "pip could not install what is needed; its words are above"
    fi
    rm -f "$log"
}

# Of what pip says: the packages that come, with their sizes, and that they are being installed.
show_progress() {
    sed -n -u -E -e 's/^ *(Downloading|Using cached) ([^/ ]*\/)*([^ ]*)\.(whl|tar\.gz)( .*)?$/  \3\5/p' \
        -e 's/^Installing collected packages.*/  installing them/p' >&2
}

is_editable() {
    compgen -G "$1/lib/python3*/site-packages/__editable__*sluicemq*" >/dev/null
}

stamp() {
    cat "$1/$2.stamp" 2>/dev/null || true
}

# What has to be installed: changes with the extra $1, the folders after it and the requirements.
wanted_sum() {
    printf '%s %s\n' "$*" "$(cat pyproject.toml bench/pyproject.toml | cksum)"
}

sources_sum() {
    find broker devices clients/sluicemq bench -type f -name '*.py' -exec cksum {} + | sort | cksum
}

# Become `sluicemq $1` with the arguments after it. That of deploy/install, where this host has one: as its user,
# and with its configuration. Else that of this checkout, which is set up for that; $called_in: where FILEs are.
become_sluicemq() {
    local command=$1 installed=/opt/sluicemq/current/bin/sluicemq user=sluicemq python
    shift
    if [ -x "$installed" ] && [ "$(id -u)" -eq 0 ]; then
        exec setpriv --reuid=$user --regid=$user --clear-groups env HOME=/var/lib/sluicemq \
            SLUICEMQ_DATA_DIR=/var/lib/sluicemq "$installed" "$command" --config /etc/sluicemq/sluicemq.toml "$@"
    fi
    [ ! -x "$installed" ] || exec "$installed" "$command" "$@"
    say_first_time .venv "100 MB" || true
    python=$(find_python)
    # shellcheck disable=SC2046 # one word for each package
    install_packages $(missing_for_venv "$python") $(missing_for_mongod "$python")
    set_up "$python" .venv embedded
    installed=$PWD/.venv/bin/sluicemq
    cd "${called_in:?}" || die "there is no folder $called_in"
    exec "$installed" "$command" "$@"
}
