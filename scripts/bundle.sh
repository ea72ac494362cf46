#!/bin/sh
# Takes nft and iptables, with all libraries that they need and the loader, from
# Debian's packages, and lists these packages in the file packages. The packages
# are not installed.
#
#   bundle.sh DEBIAN-ARCHITECTURE OUTPUT-FOLDER
set -eu

architecture=$1
out=$2
strip=${STRIP:-strip}
packages="nftables libnftables1 iptables libxtables12 libip4tc2 libip6tc2 libnftnl11 libmnl0
	libnfnetlink0 libnetfilter-conntrack3 libgmp10 libjansson4 libedit2 libbsd0 libmd0 libtinfo6 libc6"

"$(dirname "$0")/aptlists.sh"
rm -rf "$out"
mkdir -p "$out/debs" "$out/root" "$out/lib/xtables"
names=
for package in $packages; do
	names="$names $package:$architecture"
done
# As root, apt downloads as a user of its own, who may not enter our folder.
# shellcheck disable=SC2086 # a list of words
(cd "$out/debs" && apt-get download -qq -o APT::Sandbox::User=root $names)
for deb in "$out"/debs/*.deb; do
	dpkg-deb -x "$deb" "$out/root"
	# shellcheck disable=SC2016 # dpkg's own
	dpkg-deb -W --showformat='${Package} ${Version} ${Architecture}\n' "$deb" >>"$out/packages"
done

# library prints the path of the library called $1.
library() {
	find "$out/root" -name "$1" ! -path '*/gconv/*' | head -n 1
}

# needed prints the libraries that the file $1 links.
needed() {
	readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'
}

# take copies the file $1 to $2, and the libraries that it needs into lib/.
take() {
	[ ! -e "$2" ] || return 0
	cp -L "$1" "$2"
	for name in $(needed "$2"); do
		path=$(library "$name")
		if [ -z "$path" ]; then
			echo "$1 needs $name, which none of the packages contains" >&2
			return 1
		fi
		case $name in
		ld-*) ;; # the program interpreter, taken below as ld.so
		*) take "$path" "$out/lib/$name" ;;
		esac
	done
}

for program in nft xtables-nft-multi xtables-legacy-multi; do
	take "$(library "$program")" "$out/lib/$program"
done
# Take only the extensions for IP: kedge does not use those of ebtables and
# arptables.
find "$out/root" -path '*/xtables/lib*.so' ! -name 'libebt_*' ! -name 'libarpt_*' >"$out/extensions"
while read -r extension; do
	take "$extension" "$out/lib/xtables/$(basename "$extension")"
done <"$out/extensions"
interpreter=$(readelf -l "$out/lib/nft" | sed -n 's/.*interpreter: \(.*\)\]/\1/p')
cp -L "$(library "$(basename "$interpreter")")" "$out/lib/ld.so"

chmod 755 "$out"/lib/* "$out"/lib/xtables/*
"$strip" --strip-unneeded "$out"/lib/xtables/*.so "$out/lib/nft" "$out"/lib/xtables-*-multi "$out"/lib/*.so.*
rm -rf "$out/debs" "$out/root" "$out/extensions"
