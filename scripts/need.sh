#!/bin/sh
# Installs the Debian packages named as arguments that are not installed yet.
# It does nothing, and needs no root, when all are.
set -eu

missing=
for package in "$@"; do
	status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
	[ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
	echo "These packages are needed to build kedge. Install them, or run make as root:" >&2
	echo "  sudo apt-get install$missing" >&2
	exit 1
fi
echo "installing$missing"
"$(dirname "$0")/aptlists.sh"
# shellcheck disable=SC2086 # a list of words
DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing >/dev/null
