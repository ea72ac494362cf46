package host

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// trialTable is the name of the tables that nftables tries. They never exist.
const trialTable = "kedge-trial"

// Constants of linux/netfilter/nf_tables.h and nf_nat.h that x/sys/unix does not have.
const (
	metaIifkind           = 26 // NFT_META_IIFKIND
	rangeProtoRandomFully = 16 // NF_NAT_RANGE_PROTO_RANDOM_FULLY
	icmpUnreach           = 0  // NFT_REJECT_ICMP_UNREACH
)

// step is a message to the kernel, which adds a table, a chain or a rule.
type step struct {
	family, message uint8
	attributes      []*nl.RtAttr
	// lack says in words what a kernel lacks that refuses the step.
	lack string
}

// nftables returns nil if the kernel takes everything that kedge, kube-proxy and the CNI plugins write to
// nftables, and otherwise an error that names the first thing that it does not take. A kernel can have the
// module nf_tables and lack the rest, such as Debian's user-mode-linux 6.1, which has no family at all. The
// kernel loads the modules that it needs for an answer.
func nftables() error { return tryNftables(sendNetfilter) }

// tryNftables is nftables with a kernel: send delivers a batch of messages, and returns all answers.
//
// The batch lacks its last message, NFNL_MSG_BATCH_END. The kernel checks such a batch and then takes back what
// it has prepared (nfnetlink_rcv_batch in net/netfilter/nfnetlink.c). `nft --check` does the same.
func tryNftables(send func(batch []byte) (answers []byte, err error)) error {
	steps := trialSteps()
	begin := request(unix.NFNL_MSG_BATCH_BEGIN, unix.AF_UNSPEC, 0)
	// The number of the subsystem, in the order of the network's bytes.
	begin.AddData(&nl.Nfgenmsg{Version: nl.NFNETLINK_V0, ResId: binary.NativeEndian.Uint16([]byte{0, unix.NFNL_SUBSYS_NFTABLES})})
	batch := begin.Serialize()
	for i, s := range steps {
		message := request(unix.NFNL_SUBSYS_NFTABLES<<8|int(s.message), unix.NLM_F_CREATE|unix.NLM_F_ACK, uint32(i+1))
		message.AddData(&nl.Nfgenmsg{NfgenFamily: s.family, Version: nl.NFNETLINK_V0})
		for _, attribute := range s.attributes {
			message.AddData(attribute)
		}
		batch = append(batch, message.Serialize()...)
	}
	answers, err := send(batch)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return fmt.Errorf("the kernel has no nf_tables (NF_TABLES): %w", err)
	}
	if err != nil {
		return fmt.Errorf("ask the kernel for nftables: %w", err)
	}
	return judge(steps, answers)
}

func request(kind, flags int, sequence uint32) *nl.NetlinkRequest {
	return &nl.NetlinkRequest{NlMsghdr: unix.NlMsghdr{
		Len: unix.SizeofNlMsghdr, Type: uint16(kind), Flags: uint16(flags | unix.NLM_F_REQUEST), Seq: sequence,
	}}
}

// judge returns an error for the first step that the kernel has refused or not answered.
func judge(steps []step, answers []byte) error {
	taken := make([]bool, len(steps)+1)
	for len(answers) >= unix.SizeofNlMsghdr+4 {
		length := int(binary.NativeEndian.Uint32(answers))
		if length < unix.SizeofNlMsghdr+4 || length > len(answers) {
			break
		}
		kind, sequence := binary.NativeEndian.Uint16(answers[4:]), int(binary.NativeEndian.Uint32(answers[8:]))
		errno := unix.Errno(-int32(binary.NativeEndian.Uint32(answers[unix.SizeofNlMsghdr:])))
		answers = answers[min((length+3)&^3, len(answers)):]
		switch {
		case kind != unix.NLMSG_ERROR || sequence > len(steps):
		case errno == 0:
			taken[sequence] = true
		case sequence == 0 && errno == unix.EPERM:
			return fmt.Errorf("this process has no right to use nftables (CAP_NET_ADMIN): %w", errno)
		case sequence == 0:
			return fmt.Errorf("the kernel has no nf_tables (NF_TABLES): %w", errno)
		default:
			// The kernel goes on after an error. The first one is the cause of others.
			return fmt.Errorf("the kernel's nf_tables lacks %s: %w", steps[sequence-1].lack, errno)
		}
	}
	for i, s := range steps {
		if !taken[i+1] {
			return fmt.Errorf("the kernel's nf_tables does not say whether it has %s", s.lack)
		}
	}
	return nil
}

// sendNetfilter sends a batch to this kernel. The kernel has answered when the system call is over.
func sendNetfilter(batch []byte) (answers []byte, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	buffer := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return answers, nil
		case err != nil:
			return nil, err
		case n == 0:
			return answers, errors.New("the kernel has closed the connection")
		default:
			answers = append(answers, buffer[:n]...)
		}
	}
}

// trialSteps has one of everything that kedge's tables of the family inet need, and kube-proxy's tables of the
// family ip.
func trialSteps() []step {
	inet, ip := uint8(unix.NFPROTO_INET), uint8(unix.NFPROTO_IPV4)
	word := func(kind int, value uint32) *nl.RtAttr {
		return nl.NewRtAttr(kind, binary.BigEndian.AppendUint32(nil, value))
	}
	return []step{
		table(inet, "the family inet (NF_TABLES_INET)"),
		chain(inet, "filter", unix.NF_INET_LOCAL_IN, -10, "chains of the family inet (NF_TABLES_INET)"),
		chain(inet, "nat", unix.NF_INET_POST_ROUTING, 100, "address translation in the family inet (NFT_NAT, Linux 5.2)"),
		rule(inet, "filter", "connection tracking (NFT_CT)", expression("ct", word(unix.NFTA_CT_DREG, unix.NFT_REG_1), word(unix.NFTA_CT_KEY, unix.NFT_CT_STATE))),
		rule(inet, "filter", "meta iifkind (Linux 5.1)", expression("meta", word(unix.NFTA_META_DREG, unix.NFT_REG_1), word(unix.NFTA_META_KEY, metaIifkind))),
		rule(inet, "nat", "masquerading (NFT_MASQ)", expression("masq", word(unix.NFTA_MASQ_FLAGS, rangeProtoRandomFully))),
		table(ip, "the family ip (NF_TABLES_IPV4)"),
		chain(ip, "filter", unix.NF_INET_LOCAL_IN, 0, "chains of the family ip (NF_TABLES_IPV4)"),
		chain(ip, "nat", unix.NF_INET_PRE_ROUTING, -100, "address translation in the family ip (NFT_NAT)"),
		rule(ip, "filter", "the kinds of addresses (NFT_FIB_IPV4)", expression("fib", word(unix.NFTA_FIB_DREG, unix.NFT_REG_1),
			word(unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE), word(unix.NFTA_FIB_FLAGS, unix.NFTA_FIB_F_DADDR))),
		rule(ip, "filter", "random numbers (NFT_NUMGEN)", expression("numgen", word(unix.NFTA_NG_DREG, unix.NFT_REG_1),
			word(unix.NFTA_NG_MODULUS, 2), word(unix.NFTA_NG_TYPE, unix.NFT_NG_RANDOM))),
		rule(ip, "filter", "rejecting packets (NFT_REJECT)", expression("reject", word(unix.NFTA_REJECT_TYPE, icmpUnreach), nl.NewRtAttr(unix.NFTA_REJECT_ICMP_CODE, []byte{3}))),
		rule(ip, "nat", "translation of destinations (NFT_NAT)",
			expression("immediate", word(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_1), nested(unix.NFTA_IMMEDIATE_DATA, word(unix.NFTA_DATA_VALUE, 0x7f000001))),
			expression("nat", word(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT), word(unix.NFTA_NAT_FAMILY, unix.NFPROTO_IPV4), word(unix.NFTA_NAT_REG_ADDR_MIN, unix.NFT_REG_1))),
	}
}

func table(family uint8, lack string) step {
	return step{family, unix.NFT_MSG_NEWTABLE, []*nl.RtAttr{text(unix.NFTA_TABLE_NAME, trialTable)}, lack}
}

// chain adds a chain of a kind, which is also its name, at a hook.
func chain(family uint8, kind string, hook uint32, priority int32, lack string) step {
	return step{family, unix.NFT_MSG_NEWCHAIN, []*nl.RtAttr{
		text(unix.NFTA_CHAIN_TABLE, trialTable), text(unix.NFTA_CHAIN_NAME, kind), text(unix.NFTA_CHAIN_TYPE, kind),
		nested(unix.NFTA_CHAIN_HOOK,
			nl.NewRtAttr(unix.NFTA_HOOK_HOOKNUM, binary.BigEndian.AppendUint32(nil, hook)),
			nl.NewRtAttr(unix.NFTA_HOOK_PRIORITY, binary.BigEndian.AppendUint32(nil, uint32(priority)))),
	}, lack}
}

func rule(family uint8, chain, lack string, expressions ...*nl.RtAttr) step {
	return step{family, unix.NFT_MSG_NEWRULE, []*nl.RtAttr{
		text(unix.NFTA_RULE_TABLE, trialTable), text(unix.NFTA_RULE_CHAIN, chain), nested(unix.NFTA_RULE_EXPRESSIONS, expressions...),
	}, lack}
}

func expression(name string, attributes ...*nl.RtAttr) *nl.RtAttr {
	return nested(unix.NFTA_LIST_ELEM, text(unix.NFTA_EXPR_NAME, name), nested(unix.NFTA_EXPR_DATA, attributes...))
}

func text(kind int, value string) *nl.RtAttr { return nl.NewRtAttr(kind, append([]byte(value), 0)) }

func nested(kind int, children ...*nl.RtAttr) *nl.RtAttr {
	parent := nl.NewRtAttr(kind|unix.NLA_F_NESTED, nil)
	for _, child := range children {
		parent.AddChild(child)
	}
	return parent
}
