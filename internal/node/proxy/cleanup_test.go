package proxy

import "testing"

func TestIsEmptyTable(t *testing.T) {
	for name, c := range map[string]struct {
		listing string
		want    bool
	}{
		"no chains": {"table ip mangle {\n}\n", true},
		"iptables's own chains": {`table ip nat {
	chain PREROUTING {
		type nat hook prerouting priority dstnat; policy accept;
	}

	chain POSTROUTING {
		type nat hook postrouting priority srcnat; policy accept;
	}
}
`, true},
		"a rule": {`table ip nat {
	chain POSTROUTING {
		type nat hook postrouting priority srcnat; policy accept;
		oifname "eth0" masquerade
	}
}
`, false},
		"a policy":         {"table ip filter {\n\tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy drop;\n\t}\n}\n", false},
		"somebody's chain": {"table ip filter {\n\tchain DOCKER-USER {\n\t}\n}\n", false},
		"somebody's set":   {"table ip filter {\n\tset banned {\n\t\ttype ipv4_addr\n\t}\n}\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := isEmptyTable(c.listing); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
