# shellcheck shell=bash
# Shared by the scripts beside this folder: find a Python, keep ./.venv current.
#
#   setup demo    what `laneq` needs to run, with the embedded server
#   setup dev     that, and what tests and checks need
#
# Afterwards VENV is the folder of the environment. Nothing is done unless the
# dependencies, the Python or the level have changed. LANEQ_VENV=DIR uses an
# environment of your own, as it is; LANEQ_PYTHON=PROGRAM makes ./.venv with that.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
VENV=${LANEQ_VENV:-$ROOT/.venv}

say() { printf '\033[1m>\033[0m %s\n' "$*" >&2; }

die() {
  printf '\nerror: %s\n' "$1" >&2
  shift
  if [ $# -gt 0 ]; then printf '  %s\n' "$@" >&2; fi
  exit 1
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
  local candidate
  if [ -n "${LANEQ_PYTHON:-}" ]; then
    is_new_enough "$LANEQ_PYTHON" || die "LANEQ_PYTHON=$LANEQ_PYTHON is not a Python of 3.11 or newer."
    printf '%s\n' "$LANEQ_PYTHON"
    return
  fi
  for candidate in python3.14 python3.13 python3.12 python3.11 python3 python; do
    # A Python without venv is of no use while another one has it.
    if is_new_enough "$candidate" && can_make_venv "$candidate"; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  for candidate in python3.14 python3.13 python3.12 python3.11 python3 python; do
    if is_new_enough "$candidate"; then
      die "$candidate lacks the venv module." \
        "Debian, Ubuntu: apt-get install python3-venv" \
        "Elsewhere: install a Python that comes with venv and ensurepip, then run this again."
    fi
  done
  die "no Python of 3.11 or newer was found on PATH." \
    "Debian 12, Ubuntu 24.04 or newer: apt-get install python3 python3-venv" \
    "macOS: brew install python@3.13" \
    "Or name one: LANEQ_PYTHON=/path/to/python3.12 $0"
}

can_make_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# Shows pip's work as one short line per package, in place of pages.
show_pip() {
  awk '/^Collecting / { n++; sub(/[<>=!~].*/, "", $2); printf "  %3d  %s\n", n, $2; fflush(); next }
       /^(Successfully|Building|Installing)/ { print "      " substr($0, 1, 100); fflush(); next }
       /^ *(error|ERROR)/ { print; fflush() }' >&2
}

setup() {
  local level=$1 extras python stamp want clear log started
  cd "$ROOT" || exit 1
  if [ -n "${LANEQ_VENV:-}" ]; then
    [ -x "$VENV/bin/python" ] || die "LANEQ_VENV=$LANEQ_VENV has no bin/python." "Unset it, and ./.venv is made for you."
    return
  fi
  case $level in
    demo) extras=embedded,fast ;;
    dev) extras=dev ;;
    *) die "setup: unknown level $level" ;;
  esac
  # Inside `$( )` an exit ends the subshell only, so it is passed on.
  python=$(find_python) || exit 1
  stamp=$VENV/laneq-setup
  want=$("$python" -c 'import hashlib, sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
print(sys.version.split()[0], hashlib.sha256(repr(project).encode()).hexdigest())')
  clear=--clear
  if [ -x "$VENV/bin/python" ] && [ -f "$stamp" ]; then
    # The larger level does for the smaller one.
    case $(cat "$stamp") in
      "$level $want" | "dev $want") return ;;
      *" ${want%% *} "*) clear=--upgrade ;; # same Python: install what is new
    esac
  fi
  started=$SECONDS
  say "$("$python" --version), from $(command -v "$python"): making .venv"
  rm -f "$stamp"
  log=$(mktemp)
  if ! "$python" -m venv "$clear" "$VENV" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    die "$python could not make $VENV; its words are above." "Debian, Ubuntu: apt-get install python3-venv" "Then run this again."
  fi
  say "installing laneq and what it needs ($extras); about a minute on a first run"
  if ! "$VENV/bin/python" -m pip install --disable-pip-version-check --progress-bar off \
    --editable ".[$extras]" 2>&1 | tee "$log" | show_pip; then
    tail -n 15 "$log" >&2
    rm -f "$log"
    die "pip could not install the packages." \
      "Its last words are above. Behind a proxy or mirror, set it up in pip's own configuration." \
      "Then run this again: it goes on where it can."
  fi
  rm -f "$log"
  printf '%s %s\n' "$level" "$want" >"$stamp"
  say "ready after $((SECONDS - started)) s"
}
