#!/bin/sh
# Installs kedge on this host, brings it up to date, or takes it off again.
#
#   curl -sfL URL/install.sh | sh -                     a server
#   curl -sfL URL/install.sh | KEDGE_URL=https://HOST:6443 KEDGE_TOKEN="$(cat token)" sh -   an agent of it
#   sh install.sh server --cluster-init                 with flags
#   sh install.sh uninstall                             all of it, with the cluster's data
#
# Run again it changes what is given now and what is newer, and nothing else. Pods
# run on meanwhile; if the new kedge does not get ready, the previous one comes back.
#
#   KEDGE_*                    the service's environment, kept in /etc/kedge/kedge.env; flags with
#                              secrets, such as --token, become variables there
#   INSTALL_KEDGE_EXEC         the command with its flags, such as "server --disable local-storage"
#   INSTALL_KEDGE_FROM         a release's URL or folder, one file of it, or a checkout (default: the
#                              release or checkout that this script is in, else the latest release)
#   INSTALL_KEDGE_VERSION      the release to download, such as v1.37.2+kedge.2
#   INSTALL_KEDGE_KEY          a public key (PEM): without a signature by it nothing is installed;
#                              http:// and wget need one
#   INSTALL_KEDGE_BIN_DIR      the folder of the executable (default: /usr/local/bin)
#   INSTALL_KEDGE_SKIP_START   true: do not start it, nor restart the one that runs
#   INSTALL_KEDGE_SKIP_ENABLE  true: do not start it at boot
#   INSTALL_KEDGE_SYMLINK      skip: make no kubectl, crictl and ctr; force: replace those that are there
#   INSTALL_KEDGE_RESTORE      what "kedge restore" takes, such as "s3://HOST/BUCKET/FOLDER --key FILE":
#                              this machine becomes the server of that backup, before kedge starts
#   INSTALL_KEDGE_TIMEOUT      seconds until one more part of a new version must be ready (default: 300)
#   K3S_*, INSTALL_K3S_*       are taken as KEDGE_* and INSTALL_KEDGE_*, or refused with what to do
set -eu
umask 022

releases=https://github.com/kedge-dev/kedge/releases
release_key= # `make release` puts the release's public key here, in base64

etc=/etc/kedge
environment=$etc/kedge.env
manifest=$etc/installed # what this script made; `kedge uninstall` goes by it
systemd_unit=/etc/systemd/system/kedge.service
openrc_script=/etc/init.d/kedge
log=/var/log/kedge.log # OpenRC's; systemd has its journal
rotation=/etc/logrotate.d/kedge

# Flags whose values are secrets. They become variables of $environment: every user of
# the host may read the unit, and the command line of a process.
secret_flags='token t agent-token datastore-endpoint s3-access-key s3-secret-key s3-session-token s3-proxy cluster-secret etcd-s3-access-key etcd-s3-secret-key etcd-s3-session-token etcd-s3-proxy vpn-auth'

say() { echo "kedge: $*"; }

fail() {
	echo "kedge: $*" >&2
	exit 1
}

# -- What this host is --------------------------------------------------------

look_around() {
	[ "$(id -u)" = 0 ] || fail "only root may install it: run this with sudo"
	case $(uname -m) in
	x86_64 | amd64) arch=amd64 ;;
	aarch64 | arm64) arch=arm64 ;;
	armv7* | armv8l) arch=armv7 ;;
	*) fail "there is no kedge for the processor $(uname -m); it is made for amd64, arm64 and armv7" ;;
	esac
	# A 32-bit system under a 64-bit kernel, as on many a Raspberry Pi.
	if [ "$arch" = arm64 ] && [ "$(getconf LONG_BIT 2>/dev/null || echo 64)" = 32 ]; then
		arch=armv7
	fi
	# What runs, not what is installed: this may be a container or a chroot.
	init=none unit=
	if [ -d /run/systemd/system ]; then
		init=systemd unit=$systemd_unit
	elif [ -e /run/openrc/softlevel ]; then
		init=openrc unit=$openrc_script
	fi
	installed=
	[ ! -f "$manifest" ] || installed=$(head -n 1 "$manifest")
	bin_dir=${INSTALL_KEDGE_BIN_DIR:-${installed%/*}}
	bin_dir=${bin_dir:-/usr/local/bin}
	bin_dir=${bin_dir%/}
	program=$bin_dir/kedge
	case $bin_dir in
	*[!A-Za-z0-9/._-]* | [!/]*) fail "INSTALL_KEDGE_BIN_DIR is '$bin_dir': it has to be an absolute path of letters, digits and ._-" ;;
	esac
	if [ -n "$installed" ] && [ "$installed" != "$program" ]; then
		fail "kedge is installed as $installed: leave INSTALL_KEDGE_BIN_DIR out, or take that one off first (kedge uninstall)"
	fi
	work=$bin_dir/.kedge-install # beside the executable: from here it is renamed
	timeout=${INSTALL_KEDGE_TIMEOUT:-300}
	case $timeout in
	*[!0-9]*) fail "INSTALL_KEDGE_TIMEOUT is '$timeout': it has to be a number of seconds" ;;
	esac
}

# take_k3s_variables takes what was written for k3s: INSTALL_K3S_NAME as INSTALL_KEDGE_NAME,
# and K3S_NAME as KEDGE_NAME, which the executable understands.
take_k3s_variables() {
	for name in $(env | sed -n 's/^INSTALL_K3S_\([A-Z0-9_]*\)=..*/\1/p'); do
		case $name in
		EXEC | BIN_DIR | SKIP_START | SKIP_ENABLE | SYMLINK)
			eval "[ -n \"\${INSTALL_KEDGE_$name:-}\" ] || INSTALL_KEDGE_$name=\$INSTALL_K3S_$name"
			say "taking INSTALL_K3S_$name as INSTALL_KEDGE_$name"
			;;
		TYPE | SELINUX_WARN | SKIP_SELINUX_RPM | FORCE_RESTART) say "INSTALL_K3S_$name has no effect" ;;
		VERSION) fail "INSTALL_K3S_VERSION: Set INSTALL_KEDGE_VERSION to a release of kedge, or leave it out for the latest." ;;
		COMMIT) fail "INSTALL_K3S_COMMIT: Set INSTALL_KEDGE_FROM to a checkout of the commit." ;;
		PR) fail "INSTALL_K3S_PR: Set INSTALL_KEDGE_FROM to a checkout of the pull request." ;;
		CHANNEL) fail "INSTALL_K3S_CHANNEL: kedge has no channels: leave it out for the latest release, or set INSTALL_KEDGE_VERSION." ;;
		CHANNEL_URL) fail "INSTALL_K3S_CHANNEL_URL: kedge has no channels: set INSTALL_KEDGE_FROM to the URL of a release." ;;
		MIRROR) fail "INSTALL_K3S_MIRROR: Set INSTALL_KEDGE_FROM to the URL of a release on a mirror." ;;
		MIRROR_URL) fail "INSTALL_K3S_MIRROR_URL: Set INSTALL_KEDGE_FROM to the URL of a release on a mirror." ;;
		SKIP_DOWNLOAD) fail "INSTALL_K3S_SKIP_DOWNLOAD: Set INSTALL_KEDGE_FROM to the folder or the file of a release." ;;
		BIN_DIR_READ_ONLY) fail "INSTALL_K3S_BIN_DIR_READ_ONLY: Set INSTALL_KEDGE_BIN_DIR to a folder that can be written to." ;;
		NAME) fail "INSTALL_K3S_NAME: The service is always called kedge: leave it out." ;;
		SYSTEMD_DIR) fail "INSTALL_K3S_SYSTEMD_DIR: The unit is always in /etc/systemd/system: leave it out." ;;
		*) say "INSTALL_K3S_$name is not known, and has no effect" ;;
		esac
	done
	for name in $(env | sed -n 's/^K3S_\([A-Z0-9_]*\)=..*/\1/p'); do
		eval "[ -n \"\${KEDGE_$name:-}\" ] || export KEDGE_$name=\"\$K3S_$name\""
	done
}

# -- Where it comes from ------------------------------------------------------

find_source() {
	from=${INSTALL_KEDGE_FROM:-}
	here=
	case $0 in
	install.sh) here=$PWD ;;
	*/install.sh) here=$(cd "${0%/*}" && pwd) ;;
	esac
	if [ -z "$from" ] && [ -n "$here" ] && [ -z "${INSTALL_KEDGE_VERSION:-}" ]; then
		if [ -e "$here/SHA256SUMS" ] || [ -e "$here/cmd/kedge" ]; then
			from=$here
		fi
	fi
	if [ -z "$from" ]; then
		from=$releases/latest/download
		[ -z "${INSTALL_KEDGE_VERSION:-}" ] || from=$releases/download/$INSTALL_KEDGE_VERSION
	fi
	archive=
	case $from in
	http://* | https://*)
		from=${from%/}
		if [ -z "${INSTALL_KEDGE_KEY:-}$release_key" ]; then
			case $from in
			http://*) fail "anybody on the way can change what $from sends: take https://, or give INSTALL_KEDGE_KEY=FILE, the public key that the release is signed by" ;;
			esac
			# wget cannot be told to follow no redirect to http.
			command -v curl >/dev/null || fail "it takes curl to download from $from: install curl, or give INSTALL_KEDGE_KEY=FILE, the public key that the release is signed by"
		fi
		;;
	*)
		[ -e "$from" ] || fail "INSTALL_KEDGE_FROM is $from, which is not there"
		if [ -f "$from" ]; then
			archive=$(basename "$from")
			from=$(dirname "$from")
		fi
		;;
	esac
}

# fetch NAME puts a file of the source into the work folder.
fetch() {
	case $from in
	http://* | https://*)
		if command -v curl >/dev/null; then
			curl -fsSL --proto "=${from%%:*}" --proto-redir =https --retry 3 -o "$work/$1" "$from/$1"
		elif command -v wget >/dev/null; then
			wget -qO "$work/$1" "$from/$1"
		else
			fail "it takes curl or wget to download $from/$1"
		fi
		;;
	*) [ ! -e "$from/$1" ] || cp "$from/$1" "$work/$1" ;;
	esac && [ -s "$work/$1" ]
}

# get brings the new executable to $work/kedge, checked, unless it is installed.
get() {
	if [ -e "$from/cmd/kedge" ]; then
		[ -z "${INSTALL_KEDGE_KEY:-}$release_key" ] || fail "$from is a checkout, which nobody has signed, so nothing was changed: take its own install.sh, without INSTALL_KEDGE_KEY"
		[ -x "$from/bin/kedge" ] || fail "$from is a checkout without bin/kedge: run make in it first"
		! cmp -s "$from/bin/kedge" "$program" || return 0
		say "taking $from/bin/kedge"
		cp "$from/bin/kedge" "$work/kedge"
	else
		fetch SHA256SUMS || fail "there is no SHA256SUMS in $from: that is no release of kedge"
		check_signature
		! is_sum "kedge-$arch" "$program" || return 0
		get_archive
	fi
	chmod 755 "$work/kedge"
	version=$("$work/kedge" --version 2>"$work/fault") || version=
	case $version in
	"kedge v"*) ;;
	*) fail "the new executable does not run here, so nothing was changed: $(head -n 3 "$work/fault")" ;;
	esac
}

# get_archive takes the smallest form of the executable that is there and can be unpacked here.
get_archive() {
	if [ -z "$archive" ]; then
		for suffix in .xz .gz ''; do
			offered "kedge-$arch$suffix" && unpacker "$suffix" >/dev/null && archive=kedge-$arch$suffix && break
		done
	fi
	case $archive in
	"kedge-$arch"*) ;;
	'') fail "$from has no kedge-$arch that could be unpacked here: install xz or gzip, or get a release for $arch" ;;
	*) fail "$archive is not for this host: it takes kedge-$arch.xz, kedge-$arch.gz or kedge-$arch" ;;
	esac
	say "getting $archive from $from"
	if ! fetch "$archive"; then
		[ "$archive" != "kedge-$arch" ] || fail "cannot get $archive from $from: a release has it compressed. Install xz or gzip, or unpack it on another host and put it into a folder with install.sh and SHA256SUMS"
		fail "cannot get $archive from $from"
	fi
	is_sum "$archive" "$work/$archive" || fail "$archive does not match SHA256SUMS, so nothing was changed: it is damaged, or not what was released; get it again"
	if [ "$archive" = "kedge-$arch" ]; then
		mv "$work/$archive" "$work/kedge"
		return
	fi
	unpack=$(unpacker ".${archive##*.}") || fail "$archive takes ${archive##*.} to unpack, which is not installed"
	$unpack -dc "$work/$archive" >"$work/kedge" || fail "cannot unpack $archive; is there room in $bin_dir?"
	rm "$work/$archive"
	is_sum "kedge-$arch" "$work/kedge" || fail "what is in $archive does not match SHA256SUMS, so nothing was changed"
}

# offered NAME tells whether the source has the file NAME. If the source is a URL, its
# SHA256SUMS lists the files that it has.
offered() {
	listed "$1" >/dev/null || return 1
	case $from in
	http://* | https://*) ;;
	*) [ -e "$from/$1" ] ;;
	esac
}

# unpacker SUFFIX prints the program for archives of the kind, if there is one.
unpacker() {
	case $1 in
	'') echo cat ;;
	.xz) command -v xz ;;
	.gz) command -v gzip ;;
	*) return 1 ;;
	esac
}

# listed NAME prints the sum that SHA256SUMS has for a file.
listed() { awk -v name="$1" '$2 == name || $2 == "*" name { print $1; found = 1 } END { exit !found }' "$work/SHA256SUMS"; }

# is_sum NAME FILE tells whether a file is what SHA256SUMS calls NAME.
is_sum() {
	sum=$(listed "$1") && [ -f "$2" ] && [ "$(sha256sum "$2" | cut -d ' ' -f 1)" = "$sum" ]
}

# check_signature wants the signature of SHA256SUMS to be the key's, if there is one.
check_signature() {
	key=${INSTALL_KEDGE_KEY:-}
	if [ -z "$key" ] && [ -n "$release_key" ]; then
		key=$work/key.pem
		printf -- '-----BEGIN PUBLIC KEY-----\n%s\n-----END PUBLIC KEY-----\n' "$release_key" >"$key"
	fi
	if [ -z "$key" ]; then
		! fetch SHA256SUMS.sig 2>/dev/null || say "the release is signed; INSTALL_KEDGE_KEY=FILE with its public key has that checked"
		return 0
	fi
	[ -r "$key" ] || fail "INSTALL_KEDGE_KEY is $key, which is not there"
	command -v openssl >/dev/null || fail "it takes openssl to check the release's signature: install it"
	fetch SHA256SUMS.sig || fail "the release is not signed (there is no SHA256SUMS.sig in $from), so nothing was changed"
	openssl dgst -sha256 -verify "$key" -signature "$work/SHA256SUMS.sig" "$work/SHA256SUMS" >/dev/null 2>&1 ||
		fail "the signature of SHA256SUMS is not by the key that is trusted, so nothing was changed"
	cp "$key" "$work/new/key" # `kedge upgrade` wants releases to be signed by it, too
}

# -- What it is to do ---------------------------------------------------------

# choose_command sets command to what is given, to what the service has, or to
# what KEDGE_URL says. Words that would need quotes, which systemd and OpenRC
# write differently, belong in the configuration file.
choose_command() {
	earlier=
	# shellcheck disable=SC2086 # it is a list of words
	without_secrets ${INSTALL_KEDGE_EXEC:-} "$@"
	given=$command
	case $given in
	server | agent | 'server '* | 'agent '*) return ;;
	'' | -*) ;;
	*) fail "the command is '${given%% *}': it has to be server, agent or uninstall" ;;
	esac
	command=server
	if [ -e "$etc/command" ]; then
		earlier=1
		# shellcheck disable=SC2046 # it is a list of words
		without_secrets $(cat "$etc/command")
	elif [ -n "${KEDGE_URL:-}" ]; then
		command=agent
	fi
	# Flags given now are all there are.
	[ -z "$given" ] || command="${command%% *} $given"
}

# without_secrets WORDS sets command to the words without secret flags, whose values
# become the variables that mean the same.
without_secrets() {
	command='' flag=''
	for word in "$@"; do
		if [ "$flag" ]; then
			keep_secret "$flag" "$word"
			flag=
			continue
		fi
		name=${word%%=*}
		case $name in
		--*) name=${name#--} ;;
		-*) name=${name#-} ;;
		*) name= ;;
		esac
		[ "$name" != t ] || name=token # as in k3s
		case " $secret_flags " in
		*" ${name:-/} "*)
			case $word in
			*=*) keep_secret "$name" "${word#*=}" ;;
			*) flag=$name ;;
			esac
			;;
		*)
			case $word in
			*[!A-Za-z0-9_./:=,@+~-]* | '') fail "'$word' is for $etc/config.yaml, where the flags are keys: a service takes letters, digits and _./:=,@+~- only" ;;
			esac
			command="$command${command:+ }$word"
			;;
		esac
	done
	[ -z "$flag" ] || fail "--$flag needs a value"
}

# keep_secret FLAG VALUE exports the variable of a flag. A flag of an earlier
# installation does not replace a variable that is set now.
keep_secret() {
	variable=KEDGE_$(echo "$1" | tr 'a-z-' 'A-Z_')
	if [ "$earlier" ] && eval "[ -n \"\${$variable:-}\" ]"; then
		return
	fi
	export "$variable=$2"
}

# write_files makes all files of the installation in the work folder, which is
# for root alone.
write_files() {
	echo "$command" >"$work/new/command"
	# What is set now, and what was set before and is not set now.
	: >"$work/new/environment"
	names=$(env | sed -n 's/^\(KEDGE_[A-Z0-9_]*\)=.*/\1/p; s/^\([A-Za-z]*_[Pp][Rr][Oo][Xx][Yy]\)=.*/\1/p')
	for name in $names; do
		value=
		eval "value=\$$name"
		case $value in
		*\'* | *'
'*) fail "$name has a quote or a line break in it: write it to $etc/config.yaml instead" ;;
		esac
		echo "$name='$value'" >>"$work/new/environment"
	done
	if [ -e "$environment" ]; then
		while IFS= read -r line; do
			grep -q "^${line%%=*}=" "$work/new/environment" || echo "$line" >>"$work/new/environment"
		done <"$environment"
	fi
	sort -o "$work/new/environment" "$work/new/environment"
	if [ "${command%% *}" = agent ] && [ ! -e "$etc/config.yaml" ]; then
		case "$(cat "$work/new/environment") $command" in
		*KEDGE_URL=* | *--server*) ;;
		*) fail "an agent needs a server: set KEDGE_URL=https://HOST:6443 and KEDGE_TOKEN" ;;
		esac
	fi
	[ "$init" = none ] || "${init}_unit" >"$work/new/unit"
	if [ "$init" = openrc ] && [ -d "${rotation%/*}" ]; then
		printf '%s {\n\tmissingok\n\tnotifempty\n\tcopytruncate\n}\n' "$log" >"$work/new/rotation"
	fi
}

systemd_unit() {
	cat <<END
[Unit]
Description=kedge, Kubernetes in one executable
Documentation=https://github.com/kedge-dev/kedge
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
EnvironmentFile=-$environment
ExecStart=$program $command
ExecReload=/bin/kill -HUP \$MAINPID
# Only kedge itself: pods run on when it stops.
KillMode=process
Delegate=yes
Restart=always
RestartSec=5s
# A small board makes keys for long, and an agent waits for its server.
TimeoutStartSec=0
LimitNOFILE=1048576
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity

[Install]
WantedBy=multi-user.target
END
}

openrc_unit() {
	cat <<END
#!/sbin/openrc-run
description="kedge, Kubernetes in one executable"
supervisor=supervise-daemon
command=$program
command_args="$command"
output_log=$log
error_log=$log
pidfile=/run/kedge-service.pid
respawn_delay=5
respawn_max=0
# It stops within 30 seconds, and pods run on.
retry=TERM/45/KILL/5

set -a
[ ! -f $environment ] || . $environment
set +a

depend() {
	after network-online
	want cgroups
}
END
}

# -- Putting it in place ------------------------------------------------------

# service DOES asks the service manager.
service() {
	case $init:$1 in
	systemd:reload) systemctl daemon-reload ;;
	systemd:enable) systemctl -q enable kedge ;;
	# Not waiting for READY, which wait_ready does.
	systemd:start) systemctl start --no-block kedge ;;
	systemd:stop) systemctl stop kedge ;;
	systemd:running) case $(systemctl is-active kedge) in active | activating) ;; *) return 1 ;; esac ;;
	systemd:restarts) systemctl show -p NRestarts --value kedge ;;
	# Only what kedge says: systemd has a line for each shim that it finds.
	systemd:log) journalctl -u kedge -t kedge -n 20 --no-pager ;;
	openrc:enable) rc-update -q add kedge default ;;
	openrc:start) rc-service -q kedge start ;;
	openrc:stop) rc-service -q kedge stop ;;
	openrc:running) rc-service -q kedge status ;;
	# supervise-daemon counts the first start, too.
	openrc:restarts) echo $(($(cat /run/openrc/options/kedge/start_count) - 1)) ;;
	openrc:log) tail -n 20 "$log" ;;
	openrc:reload) ;;
	esac
}

# ready PROGRAM asks whether all of the kedge that runs is ready.
ready() { "$1" status --local >/dev/null 2>&1; }

# components prints how many components of kedge are ready, and how many there are.
components() {
	# Versions without the flag always print the table.
	flag=$("$program" status --help 2>/dev/null | grep -o -e --components | head -n 1)
	"$program" status --local ${flag:+"$flag"} 2>/dev/null |
		awk '$1 == "COMPONENT" { table = 1; next } !NF { table = 0 } table { all++; ready += $2 == "Ready" } END { print ready + 0, all + 0 }'
}

# wait_ready waits until all of kedge is ready. It gives up if no other component becomes ready
# within $timeout seconds or three restarts: a slow host may need much longer for all of them.
wait_ready() {
	waited=0 silent=0 most=0 before=0
	until ready "$program"; do
		counts=$(components)
		restarts=$(service restarts 2>/dev/null) || restarts=0
		if [ "${counts% *}" -gt "$most" ]; then
			most=${counts% *} silent=0 before=${restarts:-0}
		fi
		if [ "$silent" -ge "$timeout" ] || [ "${restarts:-0}" -ge $((before + 3)) ]; then
			return 1
		fi
		if [ "$waited" -gt 0 ] && [ $((waited % 60)) = 0 ]; then
			say "this host is slow: after $waited seconds, ${counts% *} of ${counts#* } components are ready. Waiting for the others"
		fi
		sleep 2
		waited=$((waited + 2)) silent=$((silent + 2))
	done
}

# put NAME PATH MODE puts a new file in place, and keeps what was there for go_back.
put() {
	[ -e "$work/new/$1" ] || return 0
	! cmp -s "$work/new/$1" "$2" || return 0
	changed=1
	mkdir -p "$(dirname "$2")"
	if [ -e "$2" ]; then
		ln -f "$2" "$work/old/$1" 2>/dev/null || cp -p "$2" "$work/old/$1"
	fi
	echo "$1 $2" >>"$work/old/list"
	chmod "$3" "$work/new/$1"
	mv -f "$work/new/$1" "$2.new"
	mv -f "$2.new" "$2"
	# With SELinux the file has the label of the folder that it came from.
	! command -v restorecon >/dev/null || restorecon "$2" || true
}

# go_back puts back all that put replaced, takes off what was not there, and starts
# what ran.
go_back() {
	going_back=
	[ "$init" = none ] || service stop || true
	while read -r name path; do
		rm -f "$path.new"
		if [ -e "$work/old/$name" ]; then
			mv -f "$work/old/$name" "$path"
		else
			rm -f "$path"
		fi
	done <"$work/old/list"
	if [ -z "$had" ]; then
		for name in kubectl crictl ctr; do
			[ "$(readlink "$bin_dir/$name")" != kedge ] || rm -f "$bin_dir/$name"
		done
		rmdir "$etc" 2>/dev/null
	fi
	[ "$init" = none ] || service reload
	if [ "$ran" ]; then
		service start
		wait_ready || say "the previous one is back, but not ready yet: see kedge status"
	fi
}

# finish runs whenever this script ends: half an upgrade is none.
finish() {
	status=$?
	set +e # what is put back is put back, whatever else goes wrong
	trap : INT TERM HUP # not '': a service started here would ignore them too
	if [ "$going_back" ]; then
		say "going back to what was there before"
		go_back
		now="no kedge is installed"
		[ -z "$had" ] || now="the previous kedge is installed$([ -z "$ran" ] || echo " and runs")"
		echo "kedge: nothing was changed: $now" >&2
		[ "$status" != 0 ] || status=1
	fi
	rm -rf "$work"
	exit "$status"
}

# link makes kubectl, crictl and ctr where this host has none.
link() {
	for name in kubectl crictl ctr; do
		case ${INSTALL_KEDGE_SYMLINK:-} in
		skip) ;;
		force) ln -sfn kedge "$bin_dir/$name" ;;
		*)
			if ! command -v "$name" >/dev/null && [ ! -e "$bin_dir/$name" ]; then
				ln -s kedge "$bin_dir/$name"
			fi
			;;
		esac
		[ "$(readlink "$bin_dir/$name" 2>/dev/null)" != kedge ] || echo "$bin_dir/$name"
	done
}

write_manifest() {
	echo "$program"
	echo "$work"
	link
	[ -z "$unit" ] || echo "$unit"
	[ "$init" != openrc ] || printf '%s\n' "$log" "$rotation"
}

install_kedge() {
	take_k3s_variables
	look_around
	find_source
	choose_command "$@"
	if [ -n "${INSTALL_KEDGE_RESTORE:-}" ] && [ -e "$program" ]; then
		fail "INSTALL_KEDGE_RESTORE is for a machine without kedge, and $program is here: stop kedge, and run $program restore"
	fi
	going_back='' changed='' had='' ran='' was_ready=''
	trap finish EXIT
	trap 'exit 1' INT TERM HUP
	mkdir -p "$bin_dir"
	rm -rf "$work"
	mkdir -m 700 "$work" "$work/new" "$work/old"
	get
	write_files
	[ ! -e "$work/kedge" ] || mv "$work/kedge" "$work/new/kedge"

	if [ "$init" != none ] && service running 2>/dev/null; then
		ran=1
		! ready "$program" || was_ready=1
	elif [ "$init" != none ] && { ready "$work/new/kedge" || ready "$program"; }; then
		fail "kedge runs here, but not as a service: stop it first (its pods run on)"
	fi
	sync # or a power cut could leave names without their contents
	: >"$work/old/list"
	[ ! -e "$program" ] || had=1
	going_back=1
	put kedge "$program" 755
	put command "$etc/command" 600
	put environment "$environment" 600
	if [ -n "$unit" ]; then
		put unit "$unit" "$([ "$init" = systemd ] && echo 644 || echo 755)"
	fi
	put rotation "$rotation" 644
	put key "$etc/release.pem" 644
	write_manifest >"$work/new/manifest"
	put manifest "$manifest" 600
	version=$("$program" --version)
	version=${version#kedge }
	restore
	if [ "$init" = none ]; then
		going_back=''
		explain
		return
	fi
	service reload
	[ "${INSTALL_KEDGE_SKIP_ENABLE:-}" = true ] || service enable
	if [ "${INSTALL_KEDGE_SKIP_START:-}" = true ]; then
		going_back=''
		say "$version is installed; $([ "$init" = systemd ] && echo "systemctl restart kedge" || echo "rc-service kedge restart") starts it"
		return
	fi
	# Not so after an upgrade that was not to restart it.
	if [ "$ran" ] && [ -z "$changed" ] && "$program" status 2>/dev/null | grep -qF "kedge $version on "; then
		going_back=''
		say "$version is installed and runs: there was nothing to do"
		return
	fi
	start
}

# restore makes this machine the server of a backup. kedge has not run here.
restore() {
	[ -n "${INSTALL_KEDGE_RESTORE:-}" ] || return 0
	say "restoring"
	# shellcheck disable=SC2086 # a place and flags
	"$program" restore $INSTALL_KEDGE_RESTORE || fail "the backup was not restored, see above"
}

# start starts what was put in place, and stays with it only if it gets ready.
start() {
	# One that was started for the first time is there to be looked into.
	[ "$ran" ] || going_back=''
	[ -z "$ran" ] || service stop
	say "starting $version"
	service start
	# One that was not ready before, for want of its server, say, proves nothing.
	if [ "$ran" ] && [ -z "$was_ready" ]; then
		going_back=''
		say "the previous kedge was not ready either, so this one stays: see kedge status"
		return
	fi
	if ! wait_ready; then
		service log >&2 || true
		fail "$version does not get ready, see its log above; kedge status and kedge check-config say more"
	fi
	going_back=''
	say "$version is ready. Use it: $program kubectl get nodes; take it off: $program uninstall"
}

explain() {
	say "$version is installed. There is neither systemd nor OpenRC here, so start it yourself:"
	echo "  set -a; . $environment; set +a; $program $command"
	! ready "$program" || say "the kedge that runs is the one from before: stop it (pods run on), and start it again"
}

uninstall() {
	look_around
	[ -x "$program" ] || fail "there is no $program to take off: install kedge again, and take it off then"
	exec "$program" uninstall --yes
}

# All of it is read before any of it runs: a download may break off.
if [ "${1:-}" = uninstall ]; then
	uninstall
else
	install_kedge "$@"
fi
