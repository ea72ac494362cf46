package host

import (
	"encoding/binary"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// kernel plays a kernel: it refuses the steps that refuses names, and everything after the first message with
// without.
func kernel(refuses func(step) unix.Errno, without unix.Errno) func([]byte) ([]byte, error) {
	return func(batch []byte) (answers []byte, err error) {
		answer := func(sequence uint32, errno unix.Errno) {
			message := request(unix.NLMSG_ERROR, 0, sequence)
			data := binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno)))
			message.AddRawData(append(data, make([]byte, unix.SizeofNlMsghdr)...))
			answers = append(answers, message.Serialize()...)
		}
		if without != 0 {
			answer(0, without)
			return answers, nil
		}
		for i, s := range trialSteps() {
			answer(uint32(i+1), refuses(s))
		}
		return answers, nil
	}
}

func TestNftablesIsTried(t *testing.T) {
	all := func(step) unix.Errno { return 0 }
	family := func(families ...uint8) func(step) unix.Errno {
		return func(s step) unix.Errno {
			switch {
			case !slices.Contains(families, s.family):
				return 0
			case s.message == unix.NFT_MSG_NEWTABLE:
				return unix.EOPNOTSUPP
			default:
				return unix.ENOENT // there is no such table
			}
		}
	}
	lacking := func(lack string) func(step) unix.Errno {
		return func(s step) unix.Errno {
			if strings.Contains(s.lack, lack) {
				return unix.ENOENT
			}
			return 0
		}
	}
	for name, test := range map[string]struct {
		kernel func([]byte) ([]byte, error)
		want   string
	}{
		"a whole kernel":                   {kernel(all, 0), ""},
		"without nf_tables":                {kernel(all, unix.EOPNOTSUPP), "NF_TABLES): operation not supported"},
		"without a right":                  {kernel(all, unix.EPERM), "CAP_NET_ADMIN"},
		"without the family inet":          {kernel(family(unix.NFPROTO_INET), 0), "the family inet (NF_TABLES_INET): operation not supported"},
		"without any family":               {kernel(family(unix.NFPROTO_INET, unix.NFPROTO_IPV4), 0), "NF_TABLES_INET"},
		"without the family ip":            {kernel(family(unix.NFPROTO_IPV4), 0), "NF_TABLES_IPV4"},
		"without masquerading":             {kernel(lacking("NFT_MASQ"), 0), "NFT_MASQ"},
		"without random numbers":           {kernel(lacking("NFT_NUMGEN"), 0), "NFT_NUMGEN"},
		"without netlink for any firewall": {func([]byte) ([]byte, error) { return nil, unix.EPROTONOSUPPORT }, "NF_TABLES): protocol not supported"},
		"that answers nothing":             {func([]byte) ([]byte, error) { return nil, nil }, "does not say"},
		"that answers half":                {func([]byte) ([]byte, error) { return make([]byte, 30), nil }, "does not say"},
		"that makes no socket":             {func([]byte) ([]byte, error) { return nil, errors.New("no socket") }, "no socket"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tryNftables(test.kernel)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// TestNftablesLeavesNothing asks this machine's kernel, which has everything, in a network namespace of its own.
func TestNftablesLeavesNothing(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	if err := nftables(); err != nil {
		t.Error(err)
	}
	if rules, err := exec.Command("nft", "list", "ruleset").CombinedOutput(); err != nil || len(rules) > 0 {
		t.Errorf("%v, and there is\n%s", err, rules)
	}
}
