/*
 * The names of protocols, for nft and iptables on hosts without /etc/protocols,
 * as containers and the smallest systems are. nft shows numbers for names that it
 * does not find, and the service proxy, which knows its rules by their text, would
 * remove those it has just written. The launcher has ld.so put this before the C
 * library. It links nothing.
 */
//upstream:relies-on k8s.io/kubernetes/pkg/proxy/nftables/proxier.go nftElementStorage.readOrReset nftElementStorage.ensureElem nftElementStorage.cleanupLeftoverKeys
//upstream:relies-on sigs.k8s.io/knftables/nftables.go realNFTables.ListElements parseElementValue
#include <netdb.h>
#include <stddef.h>

static char *no_aliases[] = { NULL };

static struct protoent protocols[] = {
	{ "ip", no_aliases, 0 },
	{ "icmp", no_aliases, 1 },
	{ "igmp", no_aliases, 2 },
	{ "tcp", no_aliases, 6 },
	{ "udp", no_aliases, 17 },
	{ "dccp", no_aliases, 33 },
	{ "gre", no_aliases, 47 },
	{ "esp", no_aliases, 50 },
	{ "ah", no_aliases, 51 },
	{ "ipv6-icmp", no_aliases, 58 },
	{ "sctp", no_aliases, 132 },
	{ "udplite", no_aliases, 136 },
};

#define COUNT (sizeof(protocols) / sizeof(protocols[0]))

struct protoent *getprotobynumber(int number)
{
	for (size_t i = 0; i < COUNT; i++)
		if (protocols[i].p_proto == number)
			return &protocols[i];
	return NULL;
}

struct protoent *getprotobyname(const char *name)
{
	for (size_t i = 0; i < COUNT; i++) {
		const char *known = protocols[i].p_name, *given = name;

		while (*known != '\0' && *known == *given) {
			known++;
			given++;
		}
		if (*known == *given)
			return &protocols[i];
	}
	return NULL;
}
