#!/usr/bin/env bash
# One SGLang prefill engine and one decode engine on a CPU, moving real KV over TCP.
#
#   engines.sh install [DIR]   make DIR/venv and DIR/tiny; does nothing when they are there
#   engines.sh start   [DIR]   start both engines and wait until both are healthy
#   engines.sh status  [DIR]   say which engine runs; exits 1 unless both do
#   engines.sh stop    [DIR]   end the engines that start began in DIR, and nothing else
#
# DIR lies outside the repository; default ${XDG_CACHE_HOME:-$HOME/.cache}/tandem-e2e.
# PYTHON names the Python 3.11 to use (default python3.11).
# Prefill listens on 127.0.0.1:8300 with its bootstrap server on 8998, decode on 127.0.0.1:8301.
set -euo pipefail

readonly SGLANG_VERSION=0.5.23 MOONCAKE_VERSION=0.3.13.post1
readonly PREFILL_PORT=8300 DECODE_PORT=8301 BOOTSTRAP_PORT=8998
readonly START_SECONDS=900 STOP_SECONDS=20
# The mooncake library is linked against these even when it only uses TCP.
readonly DEBS=(libibverbs1 librdmacm1 libnl-3-200 libnl-route-3-200)
readonly SONAMES=(libibverbs.so.1 librdmacm.so.1 libnl-3.so.200 libnl-route-3.so.200)

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here

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

# unpack_libraries puts the missing shared libraries under DIR/libs; the system
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
  if status >/dev/null; then
    status
    return
  fi
  stop
  launch prefill "$PREFILL_PORT" --disaggregation-bootstrap-port "$BOOTSTRAP_PORT"
  launch decode "$DECODE_PORT" --disaggregation-decode-retraction-backup cpu_tensor
  wait_healthy prefill "$PREFILL_PORT"
  wait_healthy decode "$DECODE_PORT"
  status
}

# launch ROLE PORT OPTION... starts one engine as the leader of its own process group.
launch() {
  local role=$1 port=$2 libraries
  shift 2
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
    --disable-cuda-graph --disable-overlap-schedule \
    --max-total-tokens 4096 --context-length 1024 --mem-fraction-static 0.5 \
    --enable-metrics --enable-cache-report \
    --disaggregation-mode "$role" --disaggregation-transfer-backend mooncake "$@" \
    >"$dir/$role.log" 2>&1 </dev/null &
  echo "$! $(started "$!")" >"$dir/$role.pid"
  disown # so that the shell does not report how the engine ended
}

# started PID prints when a process began, in clock ticks since boot. With it a
# pid file still names one process after its number has been given to another.
started() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
  # The second field is a name in parentheses that may hold spaces.
  read -ra stat <<<"${stat##*) }"
  echo "${stat[19]}"
}

# running ROLE prints the process group of an engine that start began.
running() {
  local pid since
  read -r pid since 2>/dev/null <"$dir/$1.pid" || return 1
  [[ -n $pid && $(started "$pid") == "$since" ]] || return 1
  echo "$pid"
}

wait_healthy() {
  local role=$1 port=$2 deadline=$((SECONDS + START_SECONDS))
  until curl --silent --fail --output /dev/null --max-time 10 "http://127.0.0.1:$port/health"; do
    if ! running "$role" >/dev/null || ((SECONDS > deadline)); then
      tail -n 40 "$dir/$role.log" >&2
      stop
      die "$role did not become healthy; its log is $dir/$role.log"
    fi
    sleep 0.5
  done
}

status() {
  local role pid result=0
  for role in prefill decode; do
    if pid=$(running "$role"); then
      echo "$role runs, process group $pid"
    else
      echo "$role does not run"
      result=1
    fi
  done
  return "$result"
}

stop() {
  local role pid groups=()
  for role in prefill decode; do
    if pid=$(running "$role"); then
      groups+=("$pid")
      kill -TERM -- "-$pid" 2>/dev/null || true
    fi
    rm -f "$dir/$role.pid"
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

case ${1:-} in
install | start | status | stop) ;;
*) die "usage: engines.sh install|start|status|stop [DIR]" ;;
esac
dir=${2:-${XDG_CACHE_HOME:-$HOME/.cache}/tandem-e2e}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
readonly dir
"$1"
