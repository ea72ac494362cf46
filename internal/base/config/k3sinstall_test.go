package config

// k3sInstallVariables are the variables of k3s's install.sh, without INSTALL_K3S_. The code
// that knows them is kedge's own install.sh.
var k3sInstallVariables = []K3sKey{
	{"EXEC", Same, "", ""},
	{"BIN_DIR", Same, "", ""},
	{"SKIP_START", Same, "", ""},
	{"SKIP_ENABLE", Same, "", ""},
	{"SYMLINK", Same, "", ""},
	{"TYPE", Needless, "", "The service tells systemd when kedge is ready."},
	{"SELINUX_WARN", Needless, "", "install.sh installs no SELinux policy."},
	{"SKIP_SELINUX_RPM", Needless, "", "install.sh installs no SELinux policy."},
	{"FORCE_RESTART", Needless, "", "install.sh restarts kedge if it has changed anything."},
	{"VERSION", Refused, "", "Set INSTALL_KEDGE_VERSION to a release of kedge, or leave it out for the latest."},
	{"COMMIT", Refused, "", "Set INSTALL_KEDGE_FROM to a checkout of the commit."},
	{"PR", Refused, "", "Set INSTALL_KEDGE_FROM to a checkout of the pull request."},
	{"CHANNEL", Refused, "", "kedge has no channels: leave it out for the latest release, or set INSTALL_KEDGE_VERSION."},
	{"CHANNEL_URL", Refused, "", "kedge has no channels: set INSTALL_KEDGE_FROM to the URL of a release."},
	{"MIRROR", Refused, "", "Set INSTALL_KEDGE_FROM to the URL of a release on a mirror."},
	{"MIRROR_URL", Refused, "", "Set INSTALL_KEDGE_FROM to the URL of a release on a mirror."},
	{"SKIP_DOWNLOAD", Refused, "", "Set INSTALL_KEDGE_FROM to the folder or the file of a release."},
	{"BIN_DIR_READ_ONLY", Refused, "", "Set INSTALL_KEDGE_BIN_DIR to a folder that can be written to."},
	{"NAME", Refused, "", "The service is always called kedge: leave it out."},
	{"SYSTEMD_DIR", Refused, "", "The unit is always in /etc/systemd/system: leave it out."},
}
