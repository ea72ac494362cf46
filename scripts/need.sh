#!/bin/sh
# Installs those Debian packages among its arguments that are not installed yet.
# NAME:ARCHITECTURE names a package of another architecture, for cross-compiling.
# If all are installed, it does nothing and needs no root.
set -eu

missing='' foreign=''
for package in "$@"; do
	architecture=$(dpkg --print-architecture)
	case $package in
	*:*) architecture=${package##*:} ;;
	esac
	if ! dpkg-query -W -f '${Architecture} ${db:Status-Status}\n' "$package" 2>/dev/null | grep -Eqx "($architecture|all) installed"; then
		missing="$missing $package"
		{ dpkg --print-architecture && dpkg --print-foreign-architectures; } | grep -qx "$architecture" || foreign="$foreign $architecture"
	fi
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
	echo "These packages are needed to build kedge. Run make as root, or install them:" >&2
	for architecture in $foreign; do
		echo "  sudo dpkg --add-architecture $architecture && sudo apt-get update" >&2
	done
	echo "  sudo apt-get install$missing" >&2
	exit 1
fi
echo "installing$missing"
for architecture in $foreign; do
	dpkg --add-architecture "$architecture"
done
[ -z "$foreign" ] || apt-get update -qq
"$(dirname "$0")/aptlists.sh"
# shellcheck disable=SC2086 # a list of words
DEBIAN_FRONTEND=noninteractive apt-get install -o DPkg::Lock::Timeout=300 -qq -y --no-install-recommends $missing >/dev/null
