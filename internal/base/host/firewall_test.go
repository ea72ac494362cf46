package host

import (
	"net/netip"
	"strings"
	"testing"
)

var wanted = Firewall{
	Ports: []Port{
		{Network: "tcp", Address: "192.0.2.1:6443", Use: "the API", Remote: true},
		{Network: "udp", Address: ":8472", Use: "VXLAN", Remote: true},
		{Network: "tcp", Address: "127.0.0.1:10257", Use: "health"},
	},
	PodCIDRs:     []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")},
	ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")},
}

// commands are what the checks say is to be run.
func commands(checks []Check) (all []string) {
	for _, c := range checks {
		parts := strings.Split(c.Cost, "`")
		for i := 1; i < len(parts); i += 2 {
			all = append(all, parts[i])
		}
	}
	return all
}

func TestFirewalls(t *testing.T) {
	const (
		enabled  = "# comment\nENABLED=yes\nLOGLEVEL=low\n"
		policies = "DEFAULT_INPUT_POLICY=\"DROP\"\nDEFAULT_FORWARD_POLICY=\"DROP\"\n"
		ufwAll   = "ufw allow 6443/tcp|ufw allow 8472/udp|ufw allow from 10.42.0.0/16|ufw route allow from 10.42.0.0/16|ufw route allow to 10.42.0.0/16"
		fdAll    = "firewall-cmd --permanent --add-port=6443/tcp|firewall-cmd --reload|firewall-cmd --permanent --add-port=8472/udp|firewall-cmd --reload|" +
			"firewall-cmd --permanent --zone=trusted --add-source=10.42.0.0/16|firewall-cmd --reload|firewall-cmd --permanent --zone=trusted --add-source=10.43.0.0/16|firewall-cmd --reload"
		chains = "chain ufw-user-input {"
		table  = "table inet firewalld {"
	)
	for name, test := range map[string]struct {
		files map[string]string
		rules string
		want  string
		says  bool // that a firewall lets kedge through
	}{
		"no firewall":     {nil, "", "", false},
		"ufw is off":      {map[string]string{"etc/ufw/ufw.conf": "ENABLED=no\n", "etc/default/ufw": policies}, chains, "", false},
		"ufw":             {map[string]string{"etc/ufw/ufw.conf": enabled, "etc/default/ufw": policies}, chains, ufwAll, false},
		"ufw, unseen":     {map[string]string{"etc/ufw/ufw.conf": enabled, "etc/default/ufw": policies}, "", ufwAll, false},
		"ufw, not loaded": {map[string]string{"etc/ufw/ufw.conf": enabled, "etc/default/ufw": policies}, "table ip kedge {}", "", false},
		"ufw that accepts": {map[string]string{"etc/ufw/ufw.conf": enabled, "etc/default/ufw": "DEFAULT_INPUT_POLICY=\"ACCEPT\"\nDEFAULT_FORWARD_POLICY=\"ACCEPT\"\n"},
			chains, "", true},
		"ufw with some rules": {map[string]string{"etc/ufw/ufw.conf": enabled, "etc/default/ufw": policies, "etc/ufw/user.rules": "" +
			"### tuple ### allow tcp 80,6000:7000 0.0.0.0/0 any 0.0.0.0/0 in\n" +
			"### tuple ### allow any 8472 0.0.0.0/0 any 192.0.2.0/24 in\n" +
			"### tuple ### deny any any 0.0.0.0/0 any 10.42.0.0/16 in\n" +
			"### tuple ### route:allow any any 0.0.0.0/0 any 10.0.0.0/8 in\n"},
			chains, "ufw allow 8472/udp|ufw allow from 10.42.0.0/16|ufw route allow to 10.42.0.0/16", false},
		"ufw with all rules": {map[string]string{"etc/ufw/ufw.conf": enabled, "etc/default/ufw": policies, "etc/ufw/user.rules": "" +
			"### tuple ### allow tcp 6443 0.0.0.0/0 any 0.0.0.0/0 in\n" +
			"### tuple ### allow udp 8472 0.0.0.0/0 any 0.0.0.0/0 in\n" +
			"### tuple ### allow any any 0.0.0.0/0 any 10.42.0.0/16 in\n" +
			"### tuple ### route:allow any any 0.0.0.0/0 any 10.42.0.0/16 in\n" +
			"### tuple ### route:allow any any 10.42.0.0/16 any 0.0.0.0/0 in\n"}, chains, "", true},
		"firewalld's table":   {nil, table, fdAll, false},
		"firewalld's process": {map[string]string{"run/firewalld.pid": "77\n", "proc/77/cmdline": "/usr/bin/python3\x00/usr/sbin/firewalld\x00"}, "", fdAll, false},
		"firewalld, ended":    {map[string]string{"run/firewalld.pid": "77\n", "proc/77/cmdline": "/usr/bin/bash\x00"}, "", "", false},
		"firewalld with some rules": {map[string]string{
			"etc/firewalld/firewalld.conf":        "DefaultZone=home\n",
			"usr/lib/firewalld/zones/home.xml":    "<zone/>",
			"etc/firewalld/zones/home.xml":        `<?xml version="1.0"?><zone><short>Home</short><port port="6443" protocol="tcp"/><port port="8472" protocol="tcp"/></zone>`,
			"etc/firewalld/zones/trusted.xml":     `<zone target="ACCEPT"><source address="10.43.0.0/16"/></zone>`,
			"etc/firewalld/zones/not-default.xml": `<zone target="ACCEPT"/>`,
		}, table, "firewall-cmd --permanent --add-port=8472/udp|firewall-cmd --reload|firewall-cmd --permanent --zone=trusted --add-source=10.42.0.0/16|firewall-cmd --reload", false},
		"firewalld with all rules": {map[string]string{
			"etc/firewalld/zones/public.xml":  `<zone><port port="6000-9000" protocol="tcp"/><port port="8472" protocol="udp"/></zone>`,
			"etc/firewalld/zones/trusted.xml": `<zone target="ACCEPT"><source address="10.42.0.0/15"/></zone>`,
		}, table, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			checks := checkFirewalls(tree(t, test.files), test.rules, wanted)
			if got := strings.Join(commands(checks), "|"); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if test.want != "" && Worst(checks) != Warn {
				t.Errorf("the result is %s", Worst(checks))
			}
			if says := len(checks) == 1 && checks[0].Result == OK; says != test.says {
				t.Errorf("got %+v", checks)
			}
		})
	}
}
