#!/bin/sh
# Updates apt's package lists if there are none or if they are older than a week.
set -eu

if ! command -v apt-get >/dev/null; then
	echo "kedge can be built only on Debian or a distribution based on it: there is no apt-get here" >&2
	exit 1
fi
if [ -z "$(find /var/lib/apt/lists -name '*_Packages*' -mtime -7 2>/dev/null | head -n 1)" ]; then
	echo "updating apt's package lists"
	apt-get update -qq
fi
