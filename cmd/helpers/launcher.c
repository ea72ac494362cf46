/*
 * launcher runs a bundled dynamic program with the loader and the libraries
 * that are bundled with it, so that it works on a host with another C library
 * or none. It acts by the name it is called by:
 *
 *	nft                                            ../lib/nft
 *	iptables, ip6tables, and their -save, -restore  ../lib/xtables-nft-multi,
 *	    or ../lib/xtables-legacy-multi where the kernel lacks nf_tables
 */
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>

/*
 * has_nftables asks nf_tables for its generation, the cheapest request there
 * is. The kernel loads the module for it if it has one, and answers with an
 * error if not.
 */
static int has_nftables(void)
{
	struct {
		struct nlmsghdr header;
		struct nfgenmsg family;
	} request = {
		.header.nlmsg_len = sizeof(request),
		.header.nlmsg_type = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETGEN,
		.header.nlmsg_flags = NLM_F_REQUEST,
	};
	union {
		struct nlmsghdr header;
		char bytes[1024];
	} answer;
	ssize_t length;
	int fd;

	fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
	if (fd < 0)
		return 0;
	length = send(fd, &request, sizeof(request), 0);
	if (length == sizeof(request))
		length = recv(fd, &answer, sizeof(answer), 0);
	close(fd);
	return length >= (ssize_t)sizeof(answer.header) &&
	       answer.header.nlmsg_type == (NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWGEN);
}

int main(int argc, char **argv)
{
	char self[PATH_MAX], lib[PATH_MAX + 16], loader[PATH_MAX + 32];
	char program[PATH_MAX + 64], xtables[PATH_MAX + 32], protocols[PATH_MAX + 32];
	char *root, *name, **args;
	const char *file;
	ssize_t length;

	if (argc < 1)
		return 127;
	length = readlink("/proc/self/exe", self, sizeof(self) - 1);
	if (length < 0) {
		fprintf(stderr, "find own folder: %s\n", strerror(errno));
		return 127;
	}
	self[length] = '\0';
	root = dirname(dirname(self));
	name = basename(argv[0]);

	if (strcmp(name, "nft") == 0) {
		file = "nft";
	} else if (strncmp(name, "iptables", 8) == 0 || strncmp(name, "ip6tables", 9) == 0) {
		file = has_nftables() ? "xtables-nft-multi" : "xtables-legacy-multi";
		snprintf(xtables, sizeof(xtables), "%s/lib/xtables", root);
		setenv("XTABLES_LIBDIR", xtables, 1);
	} else {
		fprintf(stderr, "%s is not bundled with kedge\n", name);
		return 127;
	}

	snprintf(lib, sizeof(lib), "%s/lib", root);
	snprintf(loader, sizeof(loader), "%s/ld.so", lib);
	snprintf(program, sizeof(program), "%s/%s", lib, file);
	snprintf(protocols, sizeof(protocols), "%s/protocols.so", lib);
	args = calloc(argc + 9, sizeof(*args));
	if (args == NULL)
		return 127;
	args[0] = loader;
	args[1] = "--argv0";
	args[2] = name;
	args[3] = "--inhibit-cache"; /* the host's libraries are not for us */
	args[4] = "--library-path";
	args[5] = lib;
	args[6] = "--preload";
	args[7] = protocols; /* protocols.c says why */
	args[8] = program;
	/* argv ends with a null pointer, which is copied too. */
	memcpy(&args[9], &argv[1], argc * sizeof(*args));
	execv(loader, args);
	fprintf(stderr, "run %s: %s\n", loader, strerror(errno));
	return 127;
}
