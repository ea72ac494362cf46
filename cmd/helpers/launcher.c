/*
 * launcher runs a bundled dynamic program with the loader and the libraries
 * that are bundled with it, so that it works on a host with another C library
 * or none. It acts by the name it is called by:
 *
 *	nft                                            ../lib/nft
 *	iptables, ip6tables, and their -save, -restore  ../lib/xtables-nft-multi,
 *	    or ../lib/xtables-legacy-multi if nftables does not work for them
 */
#include <arpa/inet.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nf_tables_compat.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>

/* A batch of messages to nf_tables. Everything in it begins at a multiple of four. */
static struct {
	char bytes[2048];
	size_t length;
} batch;

static void *add(size_t length)
{
	void *place = batch.bytes + batch.length;

	batch.length += (length + 3) & ~(size_t)3;
	return place; /* zeroed, because it is static */
}

/* message begins a message, which ends where the next one begins, or the batch. */
static struct nlmsghdr *message(struct nlmsghdr *last, int type, int family, int subsystem)
{
	struct nlmsghdr *header = add(sizeof(*header));
	struct nfgenmsg *generic = add(sizeof(*generic));

	if (last)
		last->nlmsg_len = (char *)header - (char *)last;
	header->nlmsg_type = type;
	header->nlmsg_flags = NLM_F_REQUEST | (last ? NLM_F_CREATE | NLM_F_ACK : 0);
	generic->nfgen_family = family;
	generic->res_id = htons(subsystem);
	return header;
}

static struct nlattr *attribute(int type, const void *value, size_t length)
{
	struct nlattr *header = add(sizeof(*header));

	header->nla_type = type;
	header->nla_len = sizeof(*header) + length;
	memcpy(add(length), value, length);
	return header;
}

static void text(int type, const char *value)
{
	attribute(type, value, strlen(value) + 1);
}

static void number(int type, uint32_t value)
{
	value = htonl(value);
	attribute(type, &value, sizeof(value));
}

/* end ends an attribute that has others in it. */
static void end(struct nlattr *header)
{
	header->nla_type |= NLA_F_NESTED;
	header->nla_len = batch.bytes + batch.length - (char *)header;
}

/*
 * nftables_works tries whether iptables can use nftables: a table of the family,
 * a chain that translates addresses, and a match of iptables' own (NFT_COMPAT). A
 * kernel can have the module nf_tables and lack any of these. The batch has no
 * end, so the kernel only checks it (nfnetlink_rcv_batch in
 * net/netfilter/nfnetlink.c), as for `nft --check`.
 */
static int nftables_works(int family)
{
	static const char name[] = "kedge-trial", comment[256];
	const int kind = NFNL_SUBSYS_NFTABLES << 8;
	struct nlattr *hook, *list, *element, *data;
	struct nlmsghdr *last;
	char answer[4096];
	int fd, taken = 0;
	ssize_t length;

	last = message(NULL, NFNL_MSG_BATCH_BEGIN, AF_UNSPEC, NFNL_SUBSYS_NFTABLES);
	last = message(last, kind | NFT_MSG_NEWTABLE, family, 0);
	text(NFTA_TABLE_NAME, name);
	last = message(last, kind | NFT_MSG_NEWCHAIN, family, 0);
	text(NFTA_CHAIN_TABLE, name);
	text(NFTA_CHAIN_NAME, name);
	text(NFTA_CHAIN_TYPE, "nat");
	hook = attribute(NFTA_CHAIN_HOOK, NULL, 0);
	number(NFTA_HOOK_HOOKNUM, NF_INET_POST_ROUTING);
	number(NFTA_HOOK_PRIORITY, 100);
	end(hook);
	last = message(last, kind | NFT_MSG_NEWRULE, family, 0);
	text(NFTA_RULE_TABLE, name);
	text(NFTA_RULE_CHAIN, name);
	list = attribute(NFTA_RULE_EXPRESSIONS, NULL, 0);
	element = attribute(NFTA_LIST_ELEM, NULL, 0);
	text(NFTA_EXPR_NAME, "match");
	data = attribute(NFTA_EXPR_DATA, NULL, 0);
	text(NFTA_MATCH_NAME, "comment");
	number(NFTA_MATCH_REV, 0);
	attribute(NFTA_MATCH_INFO, comment, sizeof(comment));
	end(data);
	end(element);
	end(list);
	last->nlmsg_len = batch.bytes + batch.length - (char *)last;

	fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
	if (fd < 0)
		return 0;
	if (send(fd, batch.bytes, batch.length, 0) == (ssize_t)batch.length)
		/* The kernel has answered by now. */
		while ((length = recv(fd, answer, sizeof(answer), MSG_DONTWAIT)) > 0) {
			struct nlmsghdr *header = (struct nlmsghdr *)answer;

			for (; NLMSG_OK(header, length); header = NLMSG_NEXT(header, length)) {
				struct nlmsgerr *error = NLMSG_DATA(header);

				taken += header->nlmsg_type == NLMSG_ERROR && error->error == 0;
			}
		}
	close(fd);
	return taken == 3;
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
		file = nftables_works(name[2] == '6' ? AF_INET6 : AF_INET) ? "xtables-nft-multi" : "xtables-legacy-multi";
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
