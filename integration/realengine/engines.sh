#!/usr/bin/env bash
# SGLang prefill and decode engines on a CPU, moving real KV over TCP.
#
#   engines.sh install             make venv and tiny in TANDEM_E2E_DIR; does nothing when they are there
#   engines.sh start  [ENGINE...]  start what does not run yet and wait until it is healthy
#   engines.sh status [ENGINE...]  say which engine runs; exits 1 unless all of them do
#   engines.sh group  ENGINE       print the process group of an engine, to send it signals
#   engines.sh stop   [ENGINE...]  end engines that start began in TANDEM_E2E_DIR, and nothing else
#
# TANDEM_E2E_DIR lies outside the repository; default ${XDG_CACHE_HOME:-$HOME/.cache}/tandem-e2e.
# PYTHON names the Python 3.11 to use (default python3.11).
# On 127.0.0.1:   prefill   prefill-b   decode
#   API              8300        8302     8301
#   bootstrap        8998        8999
# Without names, start and status mean prefill and decode, stop means all.
set -euo pipefail

readonly SGLANG_VERSION=0.5.23 MOONCAKE_VERSION=0.3.13.post1
readonly PAIR=(prefill decode) ENGINES=(prefill prefill-b decode)
readonly -A PORT=([prefill]=8300 [prefill-b]=8302 [decode]=8301)
readonly -A BOOTSTRAP_PORT=([prefill]=8998 [prefill-b]=8999)
readonly START_SECONDS=900 STOP_SECONDS=20
# The mooncake library is linked against these even when it only uses TCP.
readonly DEBS=(libibverbs1 librdmacm1 libnl-3-200 libnl-route-3-200)
readonly SONAMES=(libibverbs.so.1 librdmacm.so.1 libnl-3.so.200 libnl-route-3.so.200)

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here

# With it set, each engine's start would compile thousands of modules again.
unset PYTHONDONTWRITEBYTECODE

die() {
  echo "engines.sh: $*" >&2
  exit 1
}

install() {
  local stamp="sglang $SGLANG_VERSION mooncake $MOONCAKE_VERSION"
  if [[ $(cat "$dir/installed" 2>/dev/null) == "$stamp" ]]; then
    echo "$stamp is installed in $dir"
    return
  fi
  rm -f "$dir/installed"
  install_python
  adapt_for_cpu
  unpack_libraries
  LD_LIBRARY_PATH=$(library_path) "$dir/venv/bin/python" -c 'import mooncake.engine'
  HF_HUB_OFFLINE=1 "$dir/venv/bin/python" "$here/make_tiny.py" "$dir/tiny"
  echo "$stamp" >"$dir/installed"
  echo "installed $stamp in $dir"
}

install_python() {
  "${PYTHON:-python3.11}" -m venv "$dir/venv"
  "$dir/venv/bin/pip" install --quiet uv
  # uv trusts only the certificates it brings; the machine's own may hold more.
  local certificates=/etc/ssl/certs/ca-certificates.crt
  if [[ -z ${SSL_CERT_FILE:-} && -r $certificates ]]; then
    export SSL_CERT_FILE=$certificates
  fi
  UV_CACHE_DIR=${UV_CACHE_DIR:-$dir/uv-cache} "$dir/venv/bin/uv" pip install --quiet --python "$dir/venv/bin/python" \
    "sglang==$SGLANG_VERSION" "mooncake-transfer-engine-non-cuda==$MOONCAKE_VERSION"
}

# adapt_for_cpu replaces the CUDA kernels, and makes the KV sender take host
# indices: the other way waits for a CUDA event.
adapt_for_cpu() {
  local packages sender
  packages=$("$dir/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$dir/venv/bin/uv" pip uninstall --quiet --python "$dir/venv/bin/python" sglang-kernel
  mkdir -p "$packages/sgl_kernel"
  cp "$here/sgl_kernel.py" "$packages/sgl_kernel/__init__.py"

  sender=$packages/sglang/srt/disaggregation/mooncake/conn.py
  sed -i 's/supports_host_tensor_indices = True/supports_host_tensor_indices = False/' "$sender"
  grep -q 'supports_host_tensor_indices = False' "$sender" || die "$sender is not the file this script knows"
}

# unpack_libraries puts the missing shared libraries under libs; the system
# stays as it is.
unpack_libraries() {
  local soname known missing=
  known=$(ldconfig -p)
  for soname in "${SONAMES[@]}"; do
    [[ $known == *"$soname "* ]] || missing=yes
  done
  [[ -n $missing ]] || return 0
  # Without root the update fails and the package lists already there are used.
  apt-get -qq update || true
  mkdir -p "$dir/debs" "$dir/libs"
  (
    cd "$dir/debs"
    apt-get -qq download "${DEBS[@]}"
    for package in *.deb; do
      dpkg -x "$package" "$dir/libs"
    done
  )
}

library_path() {
  local triplet
  triplet=$(uname -m)-linux-gnu
  echo "$dir/libs/usr/lib/$triplet:$dir/libs/lib/$triplet${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}

start() {
  [[ -f $dir/installed ]] || die "nothing is installed in $dir: run engines.sh install first"
  local engine launched=()
  for engine; do
    running "$engine" >/dev/null || launched+=("$engine")
  done
  for engine in "${launched[@]}"; do
    launch "$engine"
  done
  for engine in "${launched[@]}"; do
    wait_healthy "$engine" "${launched[@]}"
  done
  status "$@"
}

# launch ENGINE starts one engine as the leader of its own process group.
launch() {
  local engine=$1 port=${PORT[$1]} libraries options
  if [[ $engine == decode ]]; then
    options=(--disaggregation-mode decode --disaggregation-decode-retraction-backup cpu_tensor)
  else
    options=(--disaggregation-mode prefill --disaggregation-bootstrap-port "${BOOTSTRAP_PORT[$engine]}")
  fi
  if curl --silent --output /dev/null --max-time 5 "http://127.0.0.1:$port/ping"; then
    die "port $port is taken by another server"
  fi
  libraries=$(library_path)
  env LD_LIBRARY_PATH="$libraries" \
    SGLANG_USE_CPU_ENGINE=1 SGLANG_HOST_IP=127.0.0.1 SGLANG_LOCAL_IP_NIC=lo \
    MC_FORCE_TCP=1 MOONCAKE_PROTOCOL=tcp \
    CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 DO_NOT_TRACK=1 \
    setsid nice -n 10 "$dir/venv/bin/python" -m sglang.launch_server \
    --model-path "$dir/tiny" --served-model-name tiny --host 127.0.0.1 --port "$port" \
    --device cpu --attention-backend torch_native --sampling-backend pytorch \
    --disable-cuda-graph --disable-overlap-schedule --sleep-on-idle \
    --max-total-tokens 4096 --context-length 1024 --mem-fraction-static 0.5 \
    --enable-metrics --enable-cache-report \
    --disaggregation-transfer-backend mooncake "${options[@]}" \
    >>"$dir/$engine.log" 2>&1 </dev/null &
  echo "$! $(started "$!")" >"$dir/$engine.pid"
  disown # so that the shell does not report how the engine ended
}

# started PID prints when a process began, in clock ticks since boot, unless it
# has ended. With it a pid file still names one process after its number has been
# given to another.
started() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
  # The second field is a name in parentheses that may hold spaces.
  read -ra stat <<<"${stat##*) }"
  [[ ${stat[0]} == Z ]] || echo "${stat[19]}" # Z: ended, and nobody has asked yet how
}

# running ENGINE prints the process group of an engine that start began.
running() {
  local pid since
  read -r pid since 2>/dev/null <"$dir/$1.pid" || return 1
  [[ -n $pid && $(started "$pid") == "$since" ]] || return 1
  echo "$pid"
}

group() {
  running "$1" || die "$1 does not run"
}

# wait_healthy ENGINE LAUNCHED... gives up what start launched when one engine fails.
wait_healthy() {
  local engine=$1 deadline=$((SECONDS + START_SECONDS))
  shift
  until curl --silent --fail --output /dev/null --max-time 10 "http://127.0.0.1:${PORT[$engine]}/health"; do
    if ! running "$engine" >/dev/null || ((SECONDS > deadline)); then
      tail -n 40 "$dir/$engine.log" >&2
      stop "$@"
      die "$engine did not become healthy; its log is $dir/$engine.log"
    fi
    sleep 0.5
  done
}

status() {
  local engine pid result=0
  for engine; do
    if pid=$(running "$engine"); then
      echo "$engine runs, process group $pid"
    else
      echo "$engine does not run"
      result=1
    fi
  done
  return "$result"
}

stop() {
  local engine pid groups=()
  for engine; do
    if pid=$(running "$engine"); then
      groups+=("$pid")
      kill -TERM -- "-$pid" 2>/dev/null || true
      kill -CONT -- "-$pid" 2>/dev/null || true # one that a signal has stopped would not hear of it
    fi
    rm -f "$dir/$engine.pid"
  done
  for pid in "${groups[@]}"; do
    await_end "$pid"
  done
}

# await_end GROUP waits for a process group to end, and kills what is left of it.
await_end() {
  local deadline=$((SECONDS + STOP_SECONDS))
  while kill -0 -- "-$1" 2>/dev/null; do
    if ((SECONDS > deadline)); then
      kill -KILL -- "-$1" 2>/dev/null || true
      return
    fi
    sleep 0.2
  done
}

command=${1:-}
engines=("${@:2}")
for engine in "${engines[@]}"; do
  [[ -n ${PORT[$engine]:-} ]] || die "there is no engine $engine, only ${ENGINES[*]}"
done
case $command in
install) ((${#engines[@]} == 0)) || die "install takes no engine" ;;
start | status) ((${#engines[@]} > 0)) || engines=("${PAIR[@]}") ;;
stop) ((${#engines[@]} > 0)) || engines=("${ENGINES[@]}") ;;
group) ((${#engines[@]} == 1)) || die "group takes one engine" ;;
*) die "usage: engines.sh install|start|status|group|stop [ENGINE...]" ;;
esac
dir=${TANDEM_E2E_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tandem-e2e}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
readonly dir
"$command" "${engines[@]}"
