# Shared by the scripts beside it; sourced, not run.

set -euo pipefail

repository=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*" >&2; }
die() {
  say "$(basename -- "$0"): $*"
  exit 1
}

# configure PRESET [cmake arguments]: makes build/PRESET ready to build in. With arguments the
# settings are written again each time; without, only if there is no build folder yet or the
# presets changed (ninja itself runs cmake when a CMakeLists.txt changes).
configure() {
  local preset=$1
  shift
  local made=$repository/build/$preset/build.ninja
  if [[ -f $made && ! $repository/CMakePresets.json -nt $made && $# -eq 0 ]]; then
    return
  fi
  local launcher=()
  if command -v ccache >/dev/null; then
    launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  fi
  (cd -- "$repository" && cmake --preset "$preset" "${launcher[@]}" "$@")
}

# Runs the rest of this script alone among all that build in this clone.
lock_builds() {
  mkdir -p -- "$repository/build"
  if command -v flock >/dev/null; then
    exec 9>"$repository/build/.lock"
    flock -n 9 || {
      say "waiting for another build in this clone"
      flock 9
    }
  fi
}
unlock_builds() {
  if command -v flock >/dev/null; then
    exec 9>&-
  fi
}
