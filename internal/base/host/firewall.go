package host

import (
	"cmp"
	"context"
	"encoding/xml"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Firewall is what a firewall of the host must let through.
type Firewall struct {
	Ports []Port // only those that are Remote count
	// PodCIDRs and ServiceCIDRs are the ranges of the cluster's addresses.
	PodCIDRs, ServiceCIDRs []netip.Prefix
}

// ruleset returns the packet filters of this host as text, or "" if no program can list
// them. helpers is a folder to look for nft in besides PATH.
func ruleset(ctx context.Context, helpers string) string {
	var text strings.Builder
	for _, command := range [][]string{{filepath.Join(helpers, "nft"), "list", "ruleset"}, {"nft", "list", "ruleset"}, {"iptables-save"}, {"iptables-legacy-save"}} {
		out, err := exec.CommandContext(ctx, command[0], command[1:]...).Output()
		if err == nil {
			text.Write(out)
		}
	}
	return text.String()
}

// checkFirewalls finds what an active ufw or firewalld blocks. rules is from ruleset.
func checkFirewalls(root, rules string, f Firewall) []Check {
	return slices.Concat(checkUFW(root, rules, f), checkFirewalld(root, rules, f))
}

// blocked makes a check of something that a firewall does not let through.
func blocked(firewall, what, cost string, commands ...string) Check {
	return Check{
		Group: "firewall", Name: firewall + " " + what, Result: Warn, Detail: "not allowed",
		Cost: cost + ": run `" + strings.Join(commands, "` and `") + "`",
	}
}

func unreachable(p Port) string { return "other hosts do not reach " + p.Use }

const (
	podsBlocked    = "pods do not reach this node's DNS and API"
	routeBlocked   = "pods do not reach other pods, Services and the outside"
	serviceBlocked = "answers of Services may be dropped"
)

// checkUFW reads ufw's own files. With the filters of the host at hand, ufw is active
// only if its chains are among them.
func checkUFW(root, rules string, f Firewall) []Check {
	if setting(root, "etc/ufw/ufw.conf", "ENABLED") != "yes" || rules != "" && !strings.Contains(rules, "ufw-") {
		return nil
	}
	tuples := ufwTuples(root)
	var checks []Check
	if setting(root, "etc/default/ufw", "DEFAULT_INPUT_POLICY") != "ACCEPT" {
		for _, p := range f.Ports {
			if p.Remote && !tuples.allowPort(p) {
				checks = append(checks, blocked("ufw", p.number(), unreachable(p), "ufw allow "+p.number()))
			}
		}
		for _, cidr := range f.PodCIDRs {
			if !tuples.allow("allow", "from", cidr) {
				checks = append(checks, blocked("ufw", "from "+cidr.String(), podsBlocked, "ufw allow from "+cidr.String()))
			}
		}
	}
	if setting(root, "etc/default/ufw", "DEFAULT_FORWARD_POLICY") != "ACCEPT" {
		for _, cidr := range f.PodCIDRs {
			for _, way := range []string{"from", "to"} {
				if !tuples.allow("route:allow", way, cidr) {
					checks = append(checks, blocked("ufw", "route "+way+" "+cidr.String(), routeBlocked, "ufw route allow "+way+" "+cidr.String()))
				}
			}
		}
	}
	if len(checks) == 0 {
		return []Check{{Group: "firewall", Name: "ufw", Result: OK, Detail: "active, and lets kedge through"}}
	}
	return checks
}

// ufwRules are the rules that a user has given ufw: action, protocol, port, destination,
// source port, source (ufw's src/backend_iptables.py, _get_rules_from_formatted).
type ufwRules [][]string

func ufwTuples(root string) (rules ufwRules) {
	for _, file := range []string{"user.rules", "user6.rules"} {
		text, err := os.ReadFile(filepath.Join(root, "etc/ufw", file))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			rest, ok := strings.CutPrefix(strings.TrimSpace(line), "### tuple ### ")
			if words := strings.Fields(rest); ok && len(words) >= 6 {
				rules = append(rules, words)
			}
		}
	}
	return rules
}

func anywhere(address string) bool {
	return address == "any" || address == "0.0.0.0/0" || address == "::/0"
}

// allowPort tells whether everybody may reach the port.
func (rules ufwRules) allowPort(p Port) bool {
	number, _, _ := strings.Cut(p.number(), "/")
	return slices.ContainsFunc(rules, func(r []string) bool {
		return r[0] == "allow" && (r[1] == "any" || r[1] == p.Network) && hasPort(r[2], number) && anywhere(r[3]) && anywhere(r[5])
	})
}

// hasPort tells whether a list of ports such as any, 80,443 or 6000:7000 has one.
func hasPort(list, port string) bool {
	wanted, _ := strconv.Atoi(port)
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(strings.Replace(part, "-", ":", 1), ":")
		from, err := strconv.Atoi(first)
		to, errTo := strconv.Atoi(last)
		if part == "any" || part == port || err == nil && errTo == nil && isRange && from <= wanted && wanted <= to {
			return true
		}
	}
	return false
}

// allow tells whether everything from, or to, a range is let through.
func (rules ufwRules) allow(action, way string, cidr netip.Prefix) bool {
	address, other := 5, 3
	if way == "to" {
		address, other = 3, 5
	}
	return slices.ContainsFunc(rules, func(r []string) bool {
		given, err := netip.ParsePrefix(r[address])
		covers := anywhere(r[address]) || err == nil && given.Bits() <= cidr.Bits() && given.Contains(cidr.Addr())
		return r[0] == action && r[1] == "any" && r[2] == "any" && covers && anywhere(r[other])
	})
}

// zone is a zone of firewalld.
type zone struct {
	Target string `xml:"target,attr"`
	Ports  []struct {
		Port     string `xml:"port,attr"`
		Protocol string `xml:"protocol,attr"`
	} `xml:"port"`
	Sources []struct {
		Address string `xml:"address,attr"`
	} `xml:"source"`
}

// readZone reads a zone as the user has changed it, or as it came. A zone that cannot be
// read allows nothing.
func readZone(root, name string) (z zone) {
	for _, folder := range []string{"usr/lib/firewalld/zones", "etc/firewalld/zones"} {
		text, err := os.ReadFile(filepath.Join(root, folder, name+".xml"))
		if err != nil {
			continue
		}
		z = zone{}
		_ = xml.Unmarshal(text, &z)
	}
	return z
}

// checkFirewalld reads firewalld's own files, if its process or its table is there.
func checkFirewalld(root, rules string, f Firewall) []Check {
	if !strings.Contains(rules, "table inet firewalld") && !runs(root, "run/firewalld.pid", "firewalld") {
		return nil
	}
	name := cmp.Or(setting(root, "etc/firewalld/firewalld.conf", "DefaultZone"), "public")
	zone, trusted := readZone(root, name), readZone(root, "trusted")
	const reload = "firewall-cmd --reload"
	var checks []Check
	for _, p := range f.Ports {
		number, _, _ := strings.Cut(p.number(), "/")
		open := zone.Target == "ACCEPT"
		for _, given := range zone.Ports {
			open = open || given.Protocol == p.Network && hasPort(given.Port, number)
		}
		if p.Remote && !open {
			checks = append(checks, blocked("firewalld", p.number(), unreachable(p), "firewall-cmd --permanent --add-port="+p.number(), reload))
		}
	}
	for i, cidr := range slices.Concat(f.PodCIDRs, f.ServiceCIDRs) {
		cost := podsBlocked + ", and " + routeBlocked
		if i >= len(f.PodCIDRs) {
			cost = serviceBlocked
		}
		covered := false
		for _, source := range trusted.Sources {
			given, err := netip.ParsePrefix(source.Address)
			covered = covered || err == nil && given.Bits() <= cidr.Bits() && given.Contains(cidr.Addr())
		}
		if !covered {
			checks = append(checks, blocked("firewalld", "from "+cidr.String(), cost, "firewall-cmd --permanent --zone=trusted --add-source="+cidr.String(), reload))
		}
	}
	if len(checks) == 0 {
		return []Check{{Group: "firewall", Name: "firewalld", Result: OK, Detail: fmt.Sprintf("active, and lets kedge through (zone %s)", name)}}
	}
	return checks
}

// runs tells whether the process of a pid file is there, under its name or python's.
func runs(root, pidFile, name string) bool {
	pid, err := os.ReadFile(filepath.Join(root, pidFile))
	if err != nil {
		return false
	}
	command, err := os.ReadFile(filepath.Join(root, "proc", strings.TrimSpace(string(pid)), "cmdline"))
	return err == nil && strings.Contains(string(command), name)
}

// setting returns the value of NAME=value in a file, without quotes.
func setting(root, file, name string) string {
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return ""
	}
	value := ""
	for line := range strings.Lines(string(text)) {
		if key, given, ok := strings.Cut(strings.TrimSpace(line), "="); ok && strings.TrimSpace(key) == name {
			value = strings.Trim(strings.TrimSpace(given), `"'`)
		}
	}
	return value
}
