#!/usr/bin/env bash
# Run a command in a copy of this clone on a fresh Debian 12 that has Python, git and make only.
#
#     scripts/fresh_root.sh make test            # as root
#     scripts/fresh_root.sh --user make test     # as a user without root and sudo, with python3-venv
#     scripts/fresh_root.sh --again make test    # where the last command left the root
#
# Needs root and debootstrap. The root is in $FRESH_ROOT (default: mint-fresh-root in the temporary
# folder); its first state is kept there, so that only the first command waits for debootstrap. The
# settings of pip and apt on this machine hold inside as well. Nothing stays mounted.
set -euo pipefail
cd "$(dirname "$0")/.."

user=root again=false
while [ $# -gt 0 ]; do
  case $1 in
    --user) user=tester ;;
    --again) again=true ;;
    -*) echo "fresh_root.sh: there is no option $1; see the top of $0" >&2; exit 2 ;;
    *) break ;;
  esac
  shift
done
[ $# -gt 0 ] || { echo "usage: $0 [--user] [--again] COMMAND..." >&2; exit 2; }
[ "$(id -u)" -eq 0 ] || { echo "fresh_root.sh: making a root takes root. Type: sudo $0 ..." >&2; exit 2; }
command -v debootstrap > /dev/null ||
  { echo "fresh_root.sh: debootstrap is missing. Type: apt-get install debootstrap" >&2; exit 2; }

folder=${FRESH_ROOT:-${TMPDIR:-/tmp}/mint-fresh-root}
base=$folder/base root=$folder/root
mkdir -p "$folder"
exec 9> "$folder/lock"
flock -n 9 || { echo "fresh_root.sh: another command runs in $folder. Set FRESH_ROOT to another folder." >&2; exit 2; }

# From where this machine installs Debian packages; without a setting, Debian's own address.
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} 2> /dev/null |
  grep -E '^(URIs:|deb )' | grep -v security | grep -oE '[a-z]+://[^ ]+' | head -1 || true)

if [ ! -e "$base/.made" ]; then
  echo "Making a fresh Debian 12 in $base." >&2
  rm -rf "$base"
  debootstrap --variant=minbase --include=ca-certificates,git,make,python3 bookworm "$base" \
    ${mirror:+"$mirror"} > "$folder/debootstrap.log" 2>&1 ||
    { tail -20 "$folder/debootstrap.log" >&2; exit 1; }
  chroot "$base" useradd --create-home tester
  touch "$base/.made"
fi
if [ "$again" = false ] || [ ! -d "$root" ]; then
  rm -rf "$root"
  cp -a "$base" "$root"
fi

# The clone: what git knows, as it is now, over what an earlier command left there.
mkdir -p "$root/mint"
git ls-files -z | while IFS= read -r -d '' file; do
  if [ -e "$file" ]; then printf '%s\0' "$file"; fi
done | tar --create --null --files-from=- | tar --extract --no-same-owner --directory "$root/mint"
chroot "$root" chown -R "$user:" /mint

# The settings of this machine.
copy() { if [ -e "$1" ]; then mkdir -p "$(dirname "$root/$2")"; cp -rLT "$1" "$root/$2"; fi; }
copy /etc/resolv.conf etc/resolv.conf
copy /etc/hosts etc/hosts
copy /etc/ssl/certs/ca-certificates.crt etc/ssl/certs/ca-certificates.crt
copy /etc/apt/sources.list etc/apt/sources.list
copy /etc/apt/sources.list.d etc/apt/sources.list.d
copy /etc/apt/apt.conf.d etc/apt/apt.conf.d
copy /etc/pip.conf etc/pip.conf
copy "${HOME:-/root}/.config/pip/pip.conf" etc/xdg/pip/pip.conf
# Only root can install python3-venv, without which there is no environment to test.
[ "$user" = root ] || chroot "$root" sh -c \
  'DEBIAN_FRONTEND=noninteractive; export DEBIAN_FRONTEND
   apt-get update -qq && apt-get install --no-install-recommends --yes -qq python3-venv' \
  > "$folder/apt.log" 2>&1 || { tail -20 "$folder/apt.log" >&2; exit 1; }
# Folders that they name are there inside too; the files of a local index stand beside its "simple".
mapfile -t shared < <({ cat /etc/pip.conf "${HOME:-/root}/.config/pip/pip.conf" 2> /dev/null || true; env | grep '^PIP_' || true; } |
  grep -oE '(=|file://| )/[^ ,"]+' | sed -E 's#^(=|file://| )##; s#/simple/?$##' | sort -u)

variables=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8)
[ "$user" = root ] || variables[0]=HOME=/home/$user
while IFS= read -r variable; do variables+=("$variable"); done \
  < <(env | grep -E '^(PIP_[A-Z_]+|CI|TERM|[A-Za-z]+_[Pp][Rr][Oo][Xx][Yy])=' || true)

export root user
# Namespaces of its own: every mount and every process ends with the command. pivot_root rather than
# chroot, because the sandbox of the rewards cannot make user namespaces in a chroot.
exec unshare --mount --pid --fork --kill-child bash -s -- "${#shared[@]}" "${shared[@]}" \
  "${#variables[@]}" "${variables[@]}" "$@" 9>&- 3<&0 << 'END'
set -euo pipefail
take() { local count=$1; shift; taken=("${@:1:count}"); rest=("${@:count+1}"); }
take "$@"; shared=("${taken[@]}")
take "${rest[@]}"; variables=("${taken[@]}"); command=("${rest[@]}")

mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount --rbind /sys sys
mount -t tmpfs -o mode=755 dev dev
for device in null zero full random urandom tty; do
  touch "dev/$device"; mount --bind "/dev/$device" "dev/$device"
done
mkdir -p dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
mount -t tmpfs -o mode=1777 shm dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
for path in "${shared[@]}"; do
  if [ -d "$path" ]; then mkdir -p ".$path"; mount --bind -o ro "$path" ".$path"; fi
done
mkdir -p old
pivot_root . old
cd /mint
umount -l /old
# Not exec: this shell is process 1 and collects processes whose parent has ended.
code=0
setpriv --reuid "$user" --regid "$user" --init-groups env -i "${variables[@]}" "${command[@]}" <&3 || code=$?
exit "$code"
END
