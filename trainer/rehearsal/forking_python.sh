#!/bin/bash
# `python` of a rehearsal's node: what runs the trainer, or is started by multiprocessing, is a fork of the node's fork server,
# which has torch loaded; everything else is the desk's Python. An environment that it makes has this file as its python.
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
