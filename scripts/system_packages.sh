#!/usr/bin/env bash
# Install the Debian packages that mint's tests need and this machine does not have.
#
#     scripts/system_packages.sh             # all of them
#     scripts/system_packages.sh gcc git     # only these
#     scripts/system_packages.sh --list      # say what each one is for
#
# Prints nothing when all are there. Needs root or sudo; without them it prints one line that says
# what to type, and the tests that need a missing package are skipped. With CI=true that is an error.
set -euo pipefail
PYTHON=${PYTHON:-python3}

# package | what it is for | how to see that it is there, wherever it came from
PACKAGES=$(cat << 'END'
git | conformance tests and scripts/fresh_root.sh | command -v git
make | the targets of the Makefile | command -v make
python3-venv | the environments .venv and .venvs/* | $PYTHON -c 'import venv, ensurepip'
gcc | the kernels that make a CPU several times as fast; reasoning-gym | command -v gcc
libc6-dev | the headers of the C library, for gcc | test -e /usr/include/stdio.h
python3-dev | reasoning-gym: the headers of Python | $PYTHON -c 'import os, sysconfig as s; os.stat(s.get_paths()["include"] + "/Python.h")'
bubblewrap | the sandbox in which rewards run code that a model wrote | command -v bwrap
chromium | browser tests of the dashboard | command -v chromium || command -v chromium-browser || command -v google-chrome
postgresql | tests of the service with its tables in PostgreSQL | command -v postgres || ls /usr/lib/postgresql/*/bin/postgres
fonts-dejavu-core | text in the pictures of the browser tests | find /usr/share/fonts -name '*.ttf' -print -quit | grep -q .
END
)

is_there() { # PACKAGE
  local check
  check=$(awk -F ' [|] ' -v name="$1" '$1 == name { sub(/^[^|]*[|][^|]*[|] /, ""); print }' <<< "$PACKAGES")
  [ -n "$check" ] || { echo "system_packages.sh: $1 is not in its list. See: $0 --list" >&2; exit 2; }
  eval "$check" > /dev/null 2>&1
}

skip_or_fail() { # one line; an error only where tests must not be skipped
  echo "system_packages.sh: $1" >&2
  if [ "${CI:-}" = true ]; then exit 1; else exit 0; fi
}

if [ "${1:-}" = --list ]; then
  awk -F ' [|] ' '{ printf "%-18s %s\n", $1, $2 }' <<< "$PACKAGES"
  exit
fi
if [ $# -eq 0 ]; then
  mapfile -t wanted < <(awk -F ' [|] ' '{ print $1 }' <<< "$PACKAGES")
else
  wanted=("$@")
fi

missing=()
for package in "${wanted[@]}"; do is_there "$package" || missing+=("$package"); done
[ ${#missing[@]} -gt 0 ] || exit 0

install="apt-get install --no-install-recommends ${missing[*]}"
command -v apt-get > /dev/null ||
  skip_or_fail "missing: ${missing[*]} (Debian's names). Install them with this system's package manager."
if [ "$(id -u)" -eq 0 ]; then
  as_root=()
elif command -v sudo > /dev/null && { [ -t 0 ] || sudo -n true 2> /dev/null; }; then
  as_root=(sudo)
else
  skip_or_fail "missing: ${missing[*]}. As root, type: $install"
fi

echo "Installing Debian packages:"
for package in "${missing[@]}"; do "$0" --list | grep "^$package " | sed 's/^/  /'; done
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "$@" > "$log" 2>&1; }
# shellcheck disable=SC2086  # the words of the command
{ run apt-get update -qq && run $install --yes -qq; } ||
  { cat "$log" >&2; skip_or_fail "the packages could not be installed (see above). Type: $install"; }
