#!/bin/sh
# Updates apt's package lists when there are none or they are a week old.
set -eu

if ! command -v apt-get >/dev/null; then
	echo "kedge is built on Debian or a relative of it: there is no apt-get here" >&2
	exit 1
fi
if [ -z "$(find /var/lib/apt/lists -name '*_Packages*' -mtime -7 2>/dev/null | head -n 1)" ]; then
	echo "updating apt's package lists"
	apt-get update -qq
fi
