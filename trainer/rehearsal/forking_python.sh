#!/bin/bash
# `python` of a rehearsal's node: a process that runs the trainer, or that multiprocessing starts, is a fork of the node's fork
# server, which has torch loaded; any other is the desk's Python. Environments that it makes have this file as their python.
set -euo pipefail
real=$0-real
[[ -e $real ]] || real=$MAYFLY_REAL_PYTHON
for word in "$@"; do
  case $word in
    -u | -B | -s | -P | -m | -c) ;;
    trainer.* | "from multiprocessing."*)
      exec "$MAYFLY_REAL_PYTHON" -I -S "$MAYFLY_FORK_CLIENT" "$MAYFLY_FORK_SOCKET" "$0" "$@"
      ;;
    *) break ;;
  esac
done
if [[ ${1:-} != -m || ${2:-} != venv ]]; then exec "$real" "$@"; fi
"$real" "$@"
python=${!#}/bin/python
mv "$python" "$python-real"
cp "$0" "$python"
