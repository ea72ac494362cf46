#!/bin/sh
# Builds the images that the conformance tests use into the archive
# build/conformance/images/images.tar, without a container registry: upstream's
# programs, which build.sh built, in root file systems of Debian packages. Each
# has the name by which the tests call it. The packages are kept in
# build/conformance/debs; the same ones give the same bytes.
#
#   images.sh PAUSE-EXECUTABLE
set -eu
umask 022

pause=$(realpath "$1")
cd "$(dirname "$0")/../.."
mkdir -p build/conformance/debs build/conformance/images
out=$(realpath build/conformance)
bin=$out/bin
roots=$out/roots
rm -rf "$roots"

kubernetes=$(go -C tests/conformance/suite list -m -f '{{.Dir}}' k8s.io/kubernetes)
upstream=$kubernetes/test/images

# name prints the full name that the tests of this version give to the image
# with the id $1.
name() {
	awk -v id="configs[$1]" '$1 == id {
		gsub(/[",}{]/, " "); n = split($0, f, " ")
		registry = f[n-2]; sub(/.*list\./, "", registry)
		folder = "/e2e-test-images"
		if (registry ~ /^Gc/) folder = ""
		if (registry ~ /^BuildImage/) folder = "/build-image"
		print "registry.k8s.io" folder "/" f[n-1] ":" f[n]
	}' "$kubernetes/test/utils/image/manifest.go"
}

# -- Debian packages ----------------------------------------------------------

scripts/aptlists.sh

# debs unpacks packages into the folder $1, and unless the next word is
# --no-deps all that they depend on, as if onto an empty machine. None of their
# scripts is run.
debs() (
	folder=${1:?}
	shift
	set_folder=$out/debs/$(basename "$folder")
	# The list names the set: another list is downloaded anew.
	if [ "$(cat "$set_folder/asked" 2>/dev/null)" != "$*" ]; then
		echo "download $*"
		rm -rf "$set_folder"
		mkdir -p "$set_folder/partial"
		download "$set_folder" "$@"
		echo "$*" >"$set_folder/asked"
	fi
	mkdir -p "$folder"
	for deb in "$set_folder"/*.deb; do
		case ${deb##*/} in
		# Of use only to an installed Debian.
		debconf_* | mawk_* | base-files_* | debianutils_*) ;;
		*) dpkg-deb -x "$deb" "$folder" ;;
		esac
	done
	for unused in doc man locale lintian bug info bash-completion gcc gdb menu doc-base; do
		rm -rf "${folder:?}/usr/share/$unused"
	done
	rm -rf "$folder"/usr/lib/*-linux-gnu/gconv "$folder"/usr/lib/*-linux-gnu/perl \
		"$folder/usr/lib/systemd" "$folder/lib/systemd" "$folder/var/cache"
)

download() {
	to=$1
	shift
	# As root apt downloads as a user of its own, who may not enter our folder.
	if [ "$1" = --no-deps ]; then
		shift
		(cd "$to" && apt-get -qq -o APT::Sandbox::User=root download "$@")
		return
	fi
	: >"$to/status" # nothing is installed
	apt-get -qq -y --no-install-recommends --download-only \
		-o Dir::State::status="$to/status" -o Dir::Cache::archives="$to" \
		-o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o Debug::NoLocking=true \
		-o APT::Sandbox::User=root install "$@" >/dev/null
}

# links_of_busybox links every program of busybox that the folder $1 has not.
links_of_busybox() {
	for program in $("$1/bin/busybox" --list); do
		for place in bin sbin usr/bin usr/sbin; do
			[ ! -e "$1/$place/$program" ] || continue 2
		done
		ln -s busybox "$1/bin/$program"
	done
}

# base makes what every root file system has.
base() {
	for place in dev etc home proc root run sys tmp var/log var/run usr/bin usr/local/bin; do
		mkdir -p "$1/$place"
	done
	chmod 1777 "$1/tmp"
	printf '%s\n' root:x:0:0:root:/root:/bin/sh daemon:x:1:1:daemon:/usr/sbin:/bin/false \
		nobody:x:65534:65534:nobody:/home:/bin/false >"$1/etc/passwd"
	printf '%s\n' root:x:0: daemon:x:1: tty:x:5: nogroup:x:65534: >"$1/etc/group"
	echo "hosts: files dns" >"$1/etc/nsswitch.conf"
}

# -- Root file systems --------------------------------------------------------

mkdir -p "$roots/pause"
cp "$pause" "$roots/pause/pause"

root=$roots/busybox
base "$root"
debs "$root" --no-deps busybox-static bash-static
cp "$bin/shell" "$root/bin/sh"
links_of_busybox "$root"

# What upstream's agnhost takes from Alpine. Its programs are glibc's here, so
# that it also does for glibc-dns-testing; of that, tests of storage want a dd that
# knows more than busybox's.
root=$roots/tools
base "$root"
debs "$root" busybox-static bash bind9-dnsutils bind9-host coreutils curl hostname iperf iproute2 libc-bin \
	netcat-openbsd socat util-linux wget
ln -sf nc.openbsd "$root/bin/nc"
ln -sf bash "$root/bin/sh" # busybox's would prefer its own nc and ip
ln -s ../../bin/iperf "$root/usr/local/bin/iperf"
echo "tries = 1" >"$root/etc/wgetrc" # wget is Debian's because busybox's crashes if it gets a timeout
rm -f "$root/usr/sbin/rtcwake" "$root/usr/sbin/hwclock" # not for a container
links_of_busybox "$root"

# See test/images/agnhost/Dockerfile.
root=$roots/agnhost
mkdir -p "$root/etc" "$root/uploads" "$root/home/user-defined-in-image"
cp "$bin/agnhost" "$bin/coredns" "$root/"
ln -s agnhost "$root/agnhost-2"
cp "$upstream/agnhost/porter/localhost.crt" "$upstream/agnhost/porter/localhost.key" "$root/"
chmod 644 "$root/localhost.crt" "$root/localhost.key"
cat - "$roots/tools/etc/passwd" >"$root/etc/passwd" <<END
user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh
END
cat - "$roots/tools/etc/group" >"$root/etc/group" <<END
user-defined-in-image:x:1000:
group-defined-in-image:x:50000:user-defined-in-image
END
# Its fake registry serves one image, which must be there first.
cat >"$out/pause.json" <<END
[{"ref": "$(name Pause)", "layers": ["$roots/pause"], "config": {"User": "65535:65535", "Entrypoint": ["/pause"]}}]
END
"$bin/imgtool" build "$out/pause.json" "$out/pause.tar"
while read -r image _ tag; do
	case $image in
	pause) "$bin/imgtool" unpack "$out/pause.tar" "$image" "$tag" "$root/var/registry" ;;
	'' | '#'*) ;;
	*) echo "agnhost's fake registry wants an image that is not built here: $image" >&2 && exit 1 ;;
	esac
done <"$upstream/agnhost/fakeregistryserver/images.txt"

# agnhost beside a picture and its name
for picture in kitten nautilus; do
	mkdir -p "$roots/$picture/etc"
	cp "$upstream/$picture/html/$picture.jpg" "$upstream/$picture/html/data.json" "$roots/$picture/"
	chmod 644 "$roots/$picture"/*.*
done
# The test of image volumes looks for this name in the picture's image.
echo 'PRETTY_NAME="Stand-in for Alpine Linux"' >"$roots/kitten/etc/os-release"

root=$roots/nonewprivs
base "$root"
cp "$bin/nnp" "$root/usr/local/bin/nnp"
chmod 6755 "$root/usr/local/bin/nnp"

# See test/images/regression-issue-74839/Dockerfile. A test of conntrack uses it that is
# none of conformance.
root=$roots/regression-issue-74839
base "$root"
cp "$bin/regression-issue-74839" "$root/regression-issue-74839"

# See test/images/resource-consumer/Dockerfile. No conformance test uses it, but those of
# HorizontalPodAutoscalers do.
root=$roots/resource-consumer
base "$root"
debs "$root" stress
mkdir -p "$root/consume-cpu"
cp "$bin/consumer" "$root/consumer"
cp "$bin/consume-cpu" "$root/consume-cpu/consume-cpu"

root=$roots/etcd
mkdir -p "$root/usr/local/bin" "$root/var/lib/etcd" "$root/tmp"
chmod 1777 "$root/tmp"
cp "$bin/etcd" "$root/usr/local/bin/etcd"

root=$roots/sample-apiserver
mkdir -p "$root/tmp"
chmod 1777 "$root/tmp"
cp "$bin/sample-apiserver" "$root/sample-apiserver"

root=$roots/nginx
base "$root"
debs "$root" busybox-static nginx
links_of_busybox "$root"
rm -rf "$root"/etc/nginx/sites-* "$root/etc/nginx/modules-enabled" "$root/etc/nginx/conf.d"
for place in etc/nginx/conf.d var/cache/nginx var/log/nginx var/lib/nginx usr/share/nginx/html; do
	mkdir -p "$root/$place"
done
ln -sf /dev/stdout "$root/var/log/nginx/access.log"
ln -sf /dev/stderr "$root/var/log/nginx/error.log"
echo nginx:x:101:101:nginx:/nonexistent:/bin/false >>"$root/etc/passwd"
echo nginx:x:101: >>"$root/etc/group"
echo "<h1>Welcome to nginx!</h1>" >"$root/usr/share/nginx/html/index.html"
cat >"$root/etc/nginx/nginx.conf" <<END
user nginx;
worker_processes auto;
error_log /var/log/nginx/error.log notice;
pid /var/run/nginx.pid;
events { worker_connections 1024; }
http {
    include /etc/nginx/mime.types;
    default_type application/octet-stream;
    access_log /var/log/nginx/access.log;
    server {
        listen 80;
        location / { root /usr/share/nginx/html; index index.html; }
    }
}
END

# -- The archive --------------------------------------------------------------

separator="["
# image writes what imgtool must know of the image with the id $1, which has
# the layers $2 and the configuration $3.
image() {
	full=$(name "$1")
	if [ -z "$full" ]; then
		echo "this version of the tests has no image called $1" >&2
		exit 1
	fi
	layers=
	for layer in $2; do
		layers="$layers${layers:+, }\"$roots/$layer\""
	done
	printf '%s\n{"ref": "%s", "layers": [%s], "config": {%s}}' "$separator" "$full" "$layers" "$3"
	separator=,
}
agnhost='"Entrypoint": ["/agnhost"], "Cmd": ["pause"]'
webserver='"Entrypoint": ["/agnhost"], "Cmd": ["test-webserver"]'
nginx='"Cmd": ["nginx", "-g", "daemon off;"], "StopSignal": "SIGQUIT"'
{
	image Agnhost "tools agnhost" "$agnhost"
	image AgnhostPrev "tools agnhost" "$agnhost"
	image Kitten "tools agnhost kitten" "$webserver"
	image Nautilus "tools agnhost nautilus" "$webserver"
	# Of this image, only a shell and grep are used.
	image DistrolessIptables tools '"Cmd": ["bash"]'
	image GlibcDnsTesting tools '"Cmd": ["bash"]'
	image BusyBox busybox '"Cmd": ["sh"]'
	image NonRoot busybox '"Cmd": ["sh"], "User": "1234"'
	image Nonewprivs nonewprivs '"Cmd": ["nnp"]'
	image Nginx nginx "$nginx"
	image NginxNew nginx "$nginx"
	image Pause pause '"User": "65535:65535", "Entrypoint": ["/pause"]'
	image RegressionIssue74839 regression-issue-74839 '"Entrypoint": ["/regression-issue-74839"]'
	image ResourceConsumer resource-consumer '"Entrypoint": ["/consumer"]'
	image Etcd etcd '"Cmd": ["/usr/local/bin/etcd"]'
	image APIServer sample-apiserver '"Entrypoint": ["/sample-apiserver"]'
	echo "]"
} >"$out/images.json"
"$bin/imgtool" build "$out/images.json" "$out/images/images.tar"
rm -rf "$roots" "$out/pause.json" "$out/pause.tar" "$out/images.json"
