#!/usr/bin/env bash
# Runs clients that other people wrote against Tandem: the openai packages of
# npm and PyPI, requests with the calls of the admin API, and mini_lb beside
# Tandem over the same simulated engines.
#
#   run.sh [go test flag ...]
#
# Installs the packages once into a directory outside the repository:
#   TANDEM_CLIENTS  that directory (default ${XDG_CACHE_HOME:-$HOME/.cache}/tandem-clients)
#   PYTHON          the Python to use (default python3), 3.11
# Needs Go, Python 3.11 with venv, and Node 20 with npm.
set -euo pipefail

readonly OPENAI_NPM=7.59.0

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
dir=${TANDEM_CLIENTS:-${XDG_CACHE_HOME:-$HOME/.cache}/tandem-clients}
python=${PYTHON:-python3}
readonly here root dir python

# twice runs a command that needs the network, and runs it again if it fails.
twice() {
  "$@" && return
  echo "run.sh: failed, once more: $*" >&2
  sleep 3
  "$@"
}

# installed says whether a part was installed from what is asked for now.
installed() { # part, wanted
  [[ -e $dir/$1.installed && $(<"$dir/$1.installed") == "$2" ]]
}

install_npm() {
  local wanted="openai $OPENAI_NPM"
  installed npm "$wanted" && return
  rm -f "$dir/npm.installed"
  mkdir -p "$dir/npm"
  twice npm install --prefix "$dir/npm" --no-audit --no-fund --no-package-lock --loglevel=error "openai@$OPENAI_NPM"
  echo "$wanted" >"$dir/npm.installed"
}

install_python() {
  local wanted
  wanted=$("$python" --version && cat "$here/requirements.txt")
  installed python "$wanted" && return
  rm -f "$dir/python.installed"
  "$python" -m venv --clear "$dir/venv"
  twice "$dir/venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
  echo "$wanted" >"$dir/python.installed"
}

for program in go node npm "$python"; do
  command -v "$program" >/dev/null || { echo "run.sh: $program is needed" >&2; exit 1; }
done
mkdir -p "$dir"
install_npm & npm_pid=$!
install_python & python_pid=$!
make -s -C "$root" build
wait "$npm_pid"
wait "$python_pid"
echo "openai of npm $OPENAI_NPM on Node $(node --version), $("$dir/venv/bin/python" --version)," \
  "$(grep -E '^(openai|sglang-router)==' "$here/requirements.txt" | paste -sd ' ')"

# Everything is on this machine: no proxy may come between.
export NO_PROXY='127.0.0.1,localhost' no_proxy='127.0.0.1,localhost'
export TANDEM_CLIENTS="$dir"
cd "$root"
go test -tags clients -count=1 -v "$@" ./integration/clients
