#!/bin/bash
# Mayfly's user data: arm a power-off timer, fetch the code that the instance's tags name, run the agent, power off.
#
# One static file for AWS (Ubuntu Deep Learning AMI, run as root by cloud-init) and for rehearsals (run in a sandbox folder
# of a desk, MAYFLY_ROOT). Pulumi fills in its placeholders. User data is readable by every process of the instance: no secrets.
set -euo pipefail

bucket='@@BUCKET@@'
region='@@REGION@@'
project='@@PROJECT@@'
cap_minutes='@@CAP_MINUTES@@'
lock='@@LOCK@@'
file_system='@@FILE_SYSTEM@@' # of the cache and its access point, empty without one

root=${MAYFLY_ROOT:-}
ahead=${MAYFLY_CLOCK_AHEAD:-0} # seconds of a rehearsal's clock before this machine's
timer=mayfly-deadline
child= teller= signaled= log_key=
declare -A tag=()

refuse() {
  echo "bootstrap: refused, nothing was touched: $1" >&2
  exit 78
}

# A desk runs this file too, perhaps as root: continue only where powering off ends a sandbox or one of our EC2 instances.
check_where_we_are() {
  if [[ -n ${MAYFLY_ROOT+set} ]]; then
    [[ $root == /?* && -f $root/.mayfly-sandbox && $(cd "$root" && pwd -P) == "$root" ]] \
      || refuse "MAYFLY_ROOT '$root' is not a rehearsal's sandbox"
    [[ $(cd "$root/etc/systemd/system" && pwd -P) == "$root/etc/systemd/system" ]] \
      || refuse "$root/etc/systemd/system leads out of the sandbox"
    local tool found mark
    for tool in systemctl poweroff shutdown reboot halt nvidia-smi; do
      found=$(type -P "$tool") || refuse "there is no $tool stub on PATH"
      [[ $found == "$root/bin/$tool" && -f $found && ! -L $found ]] || refuse "$tool on PATH is $found, not the sandbox's stub"
      mark=
      { read -r && read -r mark; } < "$found" || true
      [[ $mark == "# mayfly-stub: "* ]] || refuse "$found is not marked as a stub"
    done
    systemctl=$root/bin/systemctl poweroff=$root/bin/poweroff
    python=${MAYFLY_DESK_PYTHON:?}
    image_python=$python
  else
    # cloud-init runs user data from its own folder; a copy started by hand on an EC2 desk lies elsewhere.
    [[ $EUID == 0 && $(readlink -f "$0") == /var/lib/cloud/instances/*/scripts/* ]] || refuse "not started by cloud-init"
    is_ec2 /sys/class/dmi/id || refuse "this machine is no EC2 instance"
    systemctl=$(type -P systemctl) poweroff=$(type -P poweroff)
    python=/usr/bin/python3 # Ubuntu's own, so that even an image without our environment uploads the log
    image_python=/opt/pytorch/bin/python
  fi
}

# Xen types (g3, t2) say "Xen" for their maker; their BIOS is Amazon's: "4.11.amazon" (boot logs of others, looked up 2026-11-24).
is_ec2() { # folder of the BIOS's facts
  [[ $(< "$1/sys_vendor") == "Amazon EC2" || $(< "$1/bios_version") == *.amazon ]]
}

# Times are bash's own: of `date` and `timeout` there are two kinds, GNU's and (from Ubuntu 25.10 on) uutils'.
instant() {
  local at=$EPOCHREALTIME
  echo "$((${at%[.,]*} + ahead)).${at#*[.,]}"
}

# L2 of the safety net: a unit on disk, since user data does not run again after a reboot.
arm() { # epoch seconds
  local units=$root/etc/systemd/system
  cat > "$units/$timer.service.new" <<UNIT
[Unit]
Description=Power off: the deadline has passed

[Service]
Type=oneshot
ExecStart=$systemctl poweroff
UNIT
  cat > "$units/$timer.timer.new" <<UNIT
[Unit]
Description=Deadline of this machine

[Timer]
OnCalendar=$(TZ=UTC printf '%(%Y-%m-%d %H:%M:%S UTC)T' "$1")
AccuracySec=1s
Persistent=true
Unit=$timer.service

[Install]
WantedBy=timers.target
UNIT
  mv "$units/$timer.service.new" "$units/$timer.service"
  mv "$units/$timer.timer.new" "$units/$timer.timer"
  "$systemctl" daemon-reload
  "$systemctl" enable --now "$timer.timer"
  "$systemctl" restart "$timer.timer" # `enable --now` does not update a running timer
  # systemd never fires a timer that was started after its only instant.
  ((EPOCHSECONDS + ahead < $1)) || { echo "bootstrap: the deadline has passed" >&2; exit 104; }
}

# L1: whatever happens from here on, the machine ends.
power_off() {
  local code=$?
  trap '' TERM INT
  set +e
  echo "bootstrap: powering off, exit code $code"
  if [[ -n $teller ]]; then kill -KILL "$teller"; wait "$teller"; fi 2> /dev/null
  if [[ -n $log_key ]]; then
    "$python" -I -c "$s3" run 20 "$python" -I -c "$s3" put "$log_key" "$root/var/log/cloud-init-output.log"
  fi
  "$systemctl" poweroff || "$poweroff" --force
}

on_signal() { # the operating system is shutting down: the agent reports, or the stage ends, and power_off follows
  signaled=1
  if [[ -n $child ]]; then kill -TERM "$child" 2> /dev/null || true; else exit 143; fi
}

await_child() { # return its exit code, however many signals come meanwhile: a trapped one ends `wait` early
  local code=0
  while :; do
    wait "$child" && code=0 || code=$?
    kill -0 "$child" 2> /dev/null || break
  done
  child=
  return "$code"
}

# Run a command within the remaining boot time; in the background, since bash handles a signal only between two commands.
stage() { # what, command ...
  local left=$((boot_ends - EPOCHSECONDS - ahead)) code=0
  echo "bootstrap: $1" >&2
  "$python" -I -c "$s3" run "$((left > 1 ? left : 1))" "${@:2}" &
  child=$!
  await_child || code=$?
  [[ -z $signaled ]] || exit 143
  ((code != 124)) || echo "bootstrap: the boot took longer than $boot_seconds s" >&2
  ((code == 0)) || { echo "bootstrap: failed: $1 (exit code $code)" >&2; exit "$code"; }
}

# Before the first download only the standard library is available for sure.
s3=$(cat <<'PYTHON'
import contextlib, os, signal, subprocess, sys, time

if sys.argv[1] == "run":  # a command for so many seconds; if it is late, or at a SIGTERM, it ends with its group
    asked, child = [], None  # a SIGTERM while the child is made waits until it is known
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1) or (child and sys.exit(143)))
    try:
        child = subprocess.Popen(sys.argv[3:], start_new_session=True)
        if asked:
            sys.exit(143)
        code = child.wait(float(sys.argv[2]))
        sys.exit(code if code >= 0 else 128 - code)
    except subprocess.TimeoutExpired:
        sys.exit(124)
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL) if child and child.poll() is None else ():
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(child.pid, number)
                child.wait(10)

import datetime, email.utils, hashlib, hmac, http.client, json, urllib.error, urllib.parse, urllib.request

FAILED = (OSError, http.client.HTTPException)  # HTTPError, time-outs, an answer that breaks off
IMDS = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")
BUCKET, REGION = os.environ["MAYFLY_BUCKET"], os.environ["AWS_REGION"]
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def clock():
    return time.time() + int(os.environ.get("MAYFLY_CLOCK_AHEAD", "0"))  # a rehearsal's clock may be ahead of this machine's


def call(request, attempts):
    for attempt in range(attempts):
        try:
            with opener.open(request(), timeout=60) as answer:
                return answer.read()
        except FAILED as error:  # a tag may take a moment to appear
            if attempt == attempts - 1:
                raise
            print(f"bootstrap: try {attempt + 1}: {error}", file=sys.stderr)
            time.sleep(0.2 * 2**attempt)


def base():
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "").rstrip("/")
    return f"{endpoint}/{BUCKET}" if endpoint else f"https://{BUCKET}.s3.{REGION}.amazonaws.com"


# S3 refuses what is signed a quarter of an hour off, and every deadline is an instant.
def set_clock():
    try:
        date = opener.open(urllib.request.Request(base(), method="HEAD"), timeout=5).headers["Date"]
    # an unsigned request is refused, with the date
    except urllib.error.HTTPError as error:
        date = error.headers["Date"]
    off = clock() - email.utils.parsedate_to_datetime(date).timestamp()
    if abs(off) > 60:
        time.clock_settime(time.CLOCK_REALTIME, time.time() - off)
        print(f"bootstrap: this machine's clock was {off:+.0f} s off, and is set by S3's", file=sys.stderr)
        print(round(off))


def metadata(path):
    def with_token():
        put = urllib.request.Request(f"{IMDS}/latest/api/token", method="PUT",
                                     headers={"X-aws-ec2-metadata-token-ttl-seconds": "300"})
        token = opener.open(put, timeout=5).read().decode()
        return urllib.request.Request(f"{IMDS}/latest/meta-data/{path}", headers={"X-aws-ec2-metadata-token": token})

    return call(with_token, attempts=6).decode()


def s3(method, key, body=None):  # AWS Signature Version 4
    role = metadata("iam/security-credentials/").split()[0]
    credentials = json.loads(metadata(f"iam/security-credentials/{role}"))
    url = urllib.parse.urlsplit(f"{base()}/{urllib.parse.quote(key)}")
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": url.netloc, "x-amz-content-sha256": hashlib.sha256(body or b"").hexdigest(), "x-amz-date": now,
               "x-amz-security-token": credentials["Token"]}
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = f"{method}\n{url.path}\n\n{lines}\n{names}\n{headers['x-amz-content-sha256']}"
    scope = f"{now[:8]}/{REGION}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signing = ("AWS4" + credentials["SecretAccessKey"]).encode()
    for part in (*scope.split("/"), text):
        signing = hmac.new(signing, part.encode(), hashlib.sha256).digest()
    headers["authorization"] = (f"AWS4-HMAC-SHA256 Credential={credentials['AccessKeyId']}/{scope}, "
                                f"SignedHeaders={names}, Signature={signing.hex()}")
    headers["content-type"] = "text/plain"  # else urllib says that it sends a form
    # Up to 50 s: while versioning is new, S3 may miss an object that exists, which is a 403 for who may not list.
    return call(lambda: urllib.request.Request(url.geturl(), data=body, headers=headers, method=method), attempts=9)


def put_log(key, path):
    with open(path, "rb") as source:
        source.seek(max(0, os.path.getsize(path) - (1 << 18)))
        s3("PUT", key, source.read())


if sys.argv[1] == "tags":
    for name in sys.argv[2:]:
        value = metadata("instance-id" if name == "instance_id" else f"tags/instance/{name}")
        if name == "deadline":
            value = round(datetime.datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp())
        print(f"{name}={value}")
elif sys.argv[1] == "clock":
    # asked in vain: it is right as a rule
    with contextlib.suppress(*FAILED, TypeError, ValueError):
        set_clock()
elif sys.argv[1] == "get":
    try:
        content = s3("GET", sys.argv[2])
    except FAILED as error:
        sys.exit(f"bootstrap: {sys.argv[2]} can't be fetched ({error}): launch again, which uploads it")
    if (sha256 := hashlib.sha256(content).hexdigest()) != sys.argv[4]:
        sys.exit(f"bootstrap: {sys.argv[2]} has sha256 {sha256}, the tag says {sys.argv[4]}")
    with open(sys.argv[3], "wb") as target:
        target.write(content)
elif sys.argv[1] == "put":
    put_log(*sys.argv[2:])
elif sys.argv[1] == "tell":  # the lease and the log, until the agent has a log of its own or the boot's time is over
    instance_id, lease_key, log_key, path, agents_log, ends = sys.argv[2:]
    renewed, sent = 0.0, 0
    while clock() < float(ends) and not os.path.exists(agents_log):
        try:
            if clock() > renewed + 10:
                renewed = clock()
                now = datetime.datetime.fromtimestamp(renewed, datetime.timezone.utc).replace(tzinfo=None)
                lease = {"instance_id": instance_id, "at": f"{now.isoformat()}Z",
                         "lease_until": f"{(now + datetime.timedelta(seconds=150)).isoformat()}Z"}
                s3("PUT", lease_key, json.dumps(lease).encode())
            if os.path.getsize(path) != sent:
                sent = os.path.getsize(path)
                put_log(log_key, path)
        except FAILED as error:
            print(f"bootstrap: {error}", file=sys.stderr)
            time.sleep(10)
        time.sleep(0.5)
PYTHON
)

read_tags() {
  local name value
  while IFS='=' read -r name value; do tag[$name]=$value; done \
    < <("$python" -I -c "$s3" tags project run_id attempt node deadline role_id instance_id bundle_key bundle_sha256 boot_seconds)
  local -A shape=([project]='[a-z0-9-]+' [run_id]='[a-z0-9-]+' [attempt]='[0-9]+' [node]='[0-9]+'
    [deadline]='[0-9]+' [role_id]='[A-Z0-9]+' [instance_id]='i-[0-9a-z]+' [bundle_key]='[A-Za-z0-9/._-]+' [bundle_sha256]='[0-9a-f]{64}'
    [boot_seconds]='[1-9][0-9]{0,3}')
  for name in "${!shape[@]}"; do
    [[ ${tag[$name]:-} =~ ^${shape[$name]}$ ]] || { echo "bootstrap: tag $name is '${tag[$name]:-}'" >&2; exit 103; }
  done
  [[ ${tag[project]} == "$project" ]] || { echo "bootstrap: project is ${tag[project]}, not $project" >&2; exit 103; }
  # The keys that this instance's role lets it write begin with its own id.
  own=${tag[role_id]}:${tag[instance_id]}/${tag[run_id]}/${tag[attempt]}/${tag[node]}
  log_key=attempts/$own/bootstrap.log
}

# Renew the lease and upload this log while the slow stages run.
tell() {
  "$python" -I -c "$s3" tell "${tag[instance_id]}" "live/$own.json" "$log_key" "$root/var/log/cloud-init-output.log" \
    "$home/agent.log" "$boot_ends" &
  teller=$!
}

fetch_code() {
  stage "fetch the code" "$python" -I -c "$s3" get "${tag[bundle_key]}" "$home/bundle.zip" "${tag[bundle_sha256]}"
  rm -rf "$home/code"
  stage "unpack it" "$python" -I -m zipfile -e "$home/bundle.zip" "$home/code"
  stages=$(instant)
}

# Image builds run the same script: it does nothing if the image has this environment already. Each lock has its own prefix.
install_environment() {
  local locked=(--lock "$home/code/trainer/node/$lock")
  [[ -z $root ]] || locked=() # a rehearsal's node has the packages of its desk
  venv=$home/environments/${lock%.lock}
  local stamp=$venv/mayfly-environment baked=
  if [[ -f $stamp ]]; then baked=$(< "$stamp"); fi
  stage "install the environment" bash "$home/code/ami/install.sh" --python "$image_python" --prefix "$venv" "${locked[@]}"
  if [[ $baked == "$(< "$stamp")" ]]; then baked=1; else baked=0; fi
  stages="$stages $(instant) $baked"
}

# Print the folder for data and checkpoints: local NVMe if the type has it, mounted by the image or by volumes.sh.
scratch_folder() {
  if [[ -z $root ]] && mountpoint -q /opt/dlami/nvme; then echo /opt/dlami/nvme/mayfly
  elif [[ -z $root ]] && mountpoint -q "$home/disks"; then echo "$home/disks/work"
  else echo "$home/work"; fi
}

attach_volumes() {
  local volumes=$home/code/trainer/node/volumes.sh
  [[ -n $root ]] || mountpoint -q /opt/dlami/nvme || stage "mount local disks" bash "$volumes" disks "$home/disks"
  [[ -n $file_system ]] || return 0
  # two steps, a quarter of the remaining boot time each: a run works without the cache
  stage "mount the cache" bash "$volumes" cache "$file_system" "$home/cache" \
    "$python" -I -c "$s3" run "$(((boot_ends - EPOCHSECONDS - ahead) / 4 + 1))"
  if [[ -f $home/cache.failed ]]; then MAYFLY_CACHE_FAILED=$(< "$home/cache.failed"); else MAYFLY_CACHE=$home/cache; fi
  export MAYFLY_CACHE MAYFLY_CACHE_FAILED
}

# A shutdown ends only cloud-init's own process (KillMode=process in its unit) and takes the network down before it ends
# the rest. This unit is stopped before the network, so that the agent can report first.
announce_shutdown() {
  cat > /run/systemd/system/mayfly-agent.service <<UNIT
[Unit]
Description=Let the node's agent report before the machine is down
After=network-online.target systemd-resolved.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
ExecStop=-/bin/bash -c "kill -TERM $child; while kill -0 $child; do sleep 0.2; done"
TimeoutStopSec=75
UNIT
  "$systemctl" daemon-reload && "$systemctl" start mayfly-agent.service
}

main() {
  check_where_we_are
  trap power_off EXIT
  trap on_signal TERM INT
  booted_at=$(instant)
  cap=$((${booted_at%.*} + cap_minutes * 60))
  arm "$cap"

  export MAYFLY_BUCKET=$bucket AWS_REGION=$region AWS_DEFAULT_REGION=$region HOME=${HOME:-/root}
  export AWS_METADATA_SERVICE_TIMEOUT=5 AWS_METADATA_SERVICE_NUM_ATTEMPTS=5
  # A rehearsal has no clock to set.
  if [[ -z $root ]]; then
    off=$("$python" -I -c "$s3" clock) || off=0
    booted_at=$((${booted_at%.*} - ${off:-0})).${booted_at#*.} cap=$((cap - ${off:-0}))
  fi
  home=$root/opt/mayfly
  mkdir -p "$home"
  read_tags
  arm "$((tag[deadline] < cap ? tag[deadline] : cap))"
  boot_seconds=${tag[boot_seconds]}
  boot_ends=$((${booted_at%.*} + boot_seconds))

  tell
  fetch_code
  install_environment
  attach_volumes
  MAYFLY_WORK=$(scratch_folder)
  mkdir -p "$MAYFLY_WORK"
  cd "$MAYFLY_WORK"
  ln -sfn "$MAYFLY_WORK/node.log" "$home/agent.log" # `tell` ends once it exists: from then on the agent reports
  export MAYFLY_WORK MAYFLY_BOOTED_AT=$booted_at MAYFLY_BOOT_STAGES=$stages PYTHONPATH=$home/code PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1
  echo "bootstrap: start the agent" >&2
  "$venv/bin/python" -m trainer.node.agent &
  child=$!
  # In a rehearsal every process of the node receives the signal directly.
  [[ -n $root ]] || announce_shutdown || echo "bootstrap: a shutdown will not be announced to the agent" >&2
  await_child
}

main
