#!/bin/bash
# Install the locked environment into a prefix: a venv on top of the packages of PYTHON.
#
#   ami/install.sh --python PYTHON --prefix FOLDER [--lock FILE] [--compile]
#
# The image build, the Dockerfile, each node's boot and the tests run this one script. A prefix whose stamp names this lock, this
# Python and this script is left as it is. pip's own variables count: PIP_NO_INDEX and PIP_FIND_LINKS install from a folder.
# Without --lock the venv shows the packages of PYTHON alone: a rehearsal's node has those of the desk. --compile writes bytecode:
# an image does it once, while a node's boot would pay more for it than its imports save.
set -euo pipefail

python='' prefix='' lock='' bytecode=--no-compile
while (($#)); do
  case $1 in
    --python) python=${2:?} && shift 2 ;;
    --prefix) prefix=${2:?} && shift 2 ;;
    --lock) lock=${2:?} && shift 2 ;;
    --compile) bytecode=--compile && shift ;;
    *) echo "install: unknown argument $1" >&2 && exit 2 ;;
  esac
done
[[ -n $python && $prefix == /?* ]] || { echo "install: name --python, and an absolute --prefix" >&2; exit 2; }
[[ -x $python ]] \
  || { echo "install: the image has no $python: set image_line to a PyTorch Deep Learning AMI, and pulumi up" >&2; exit 103; }
[[ -z $lock || -r $lock ]] || { echo "install: there is no lock $lock" >&2; exit 103; }

stamp=$prefix/mayfly-environment
identity='import sys, sysconfig; print(sys.version, sys.prefix, sysconfig.get_platform())'
digest=$({ "$python" -I -c "$identity"; cat "${BASH_SOURCE[0]}" ${lock:+"$lock"}; } | sha256sum)
digest=${digest%% *}
if [[ -f $stamp && $(< "$stamp") == "$digest" ]]; then
  echo "install: $prefix is up to date" >&2
  exit 0
fi

echo "install: make the environment" >&2
rm -f "$stamp" # an install that ends half-way leaves none, and the next one begins anew
"$python" -m venv --clear --without-pip "$prefix"
if [[ -n $lock ]]; then
  echo "install: packages of $lock" >&2
  # --no-compile: 6 s of a core instead of 23 for 650 MB, most of which is never imported (2026-11-22).
  "$python" -m pip --python "$prefix/bin/python" install --quiet --disable-pip-version-check --no-cache-dir $bytecode \
    --only-binary :all: --require-hashes --no-deps -r "$lock"
fi
# The venv's packages come first, those of PYTHON by one .pth line a folder. Not --system-site-packages: from a Python that is
# itself in a venv, as /opt/pytorch is, that shows the system's packages and not its own. Nested .pth files are not read, so an
# editable install of a checkout stays invisible.
echo "install: add the image's packages" >&2
"$python" -c 'import pathlib, site, sys, sysconfig
folder = sysconfig.get_path("purelib", "venv", {"base": sys.argv[1]})
pathlib.Path(folder, "beside.pth").write_text("\n".join(site.getsitepackages()) + "\n")' "$prefix"
echo "$digest" > "$stamp"
echo "install: $prefix is ready" >&2
