#!/usr/bin/env bash
# Installs the engines if they are not, starts them, runs the suite through
# Tandem, stops them whatever happened, and ends with how many cases passed.
#
# TANDEM_E2E_DIR holds the engines and the log; default
# ${XDG_CACHE_HOME:-$HOME/.cache}/tandem-e2e. PYTHON: see engines.sh.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export TANDEM_E2E_DIR=${TANDEM_E2E_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tandem-e2e}
log=$TANDEM_E2E_DIR/suite.log

"$here/engines.sh" install
trap '"$here/engines.sh" stop' EXIT
rm -f "$TANDEM_E2E_DIR"/{prefill,prefill-b,decode}.log # an engine that starts again adds to its own
"$here/engines.sh" start prefill prefill-b decode

cd "$here/../.."
result=0
go test -tags realengine -count=1 -timeout 40m -v ./integration/realengine 2>&1 | tee "$log" || result=$?

# A case is a subtest of the third level; what is above it only groups.
count() { grep -c "^        --- $1: " "$log" || true; }
grep -oE '(departures|measured): .*' "$log" || true
echo "$(count PASS) passed, $(count FAIL) failed"
exit "$result"
