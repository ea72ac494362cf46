package dns

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/coredns/caddy/caddyfile"
)

// A user who may write the ConfigMap coredns-custom is not root on the nodes. This file has the list
// of directives and options that such a user may use. None of them opens a port or writes a file.
// Those that read a file can read it in one folder only.

// ignored are directives that are removed from a user's part, because many published examples have
// them. kedge already does what they do, or must not do it: loop ends the process, and with debug a
// panic does. The others open ports.
var ignored = []string{"debug", "health", "loop", "prometheus", "ready", "reload"}

// nowhere is a folder that cannot exist. caddyfile's parser looks for imported files beside the file
// that it parses.
const nowhere = "/dev/null"

// maxImported limits the size to which snippets may expand a part, in bytes.
const maxImported = 4 << 20

// rule says which arguments and options a directive may have.
type rule struct {
	// args checks the directive's arguments. nil allows all.
	args judge
	// options has the allowed options by their first word, with the check of their arguments. Other
	// options are refused, unless anyOption is set.
	options   map[string]judge
	anyOption bool
}

type judge func(c corefile, args []string) error

// anything is the check for arguments that are neither files nor addresses to listen on.
func anything(corefile, []string) error { return nil }

// words returns options that allow any arguments.
func words(list string) map[string]judge {
	options := map[string]judge{}
	for word := range strings.FieldsSeq(list) {
		options[word] = anything
	}
	return options
}

// with returns options with one more option.
func with(options map[string]judge, word string, judged judge) map[string]judge {
	added := maps.Clone(options)
	if added == nil {
		added = map[string]judge{}
	}
	added[word] = judged
	return added
}

// permitted are the directives that a user's part can have after its conversion. They follow the setup
// functions of CoreDNS's plugins. These options are left out: endpoint, tls and kubeconfig of
// kubernetes, which name another cluster; startup_timeout of kubernetes, which makes CoreDNS wait;
// multicluster of kubernetes, which needs rights that the DNS does not have; and expr and var of
// template, which can use up all memory.
var permitted = map[string]rule{
	"acl":         {options: words("allow block drop filter")},
	"any":         {},
	"bind":        {args: corefile.ownAddresses},
	"bufsize":     {},
	"cache":       {options: words("denial disable keepttl prefetch serve_stale serve_stale_policy servfail success")},
	"chaos":       {},
	"dns64":       {options: words("allow_ipv4 prefix translate_all")},
	"errors":      {options: words("consolidate stacktrace")},
	"file":        {args: corefile.fileFirst, options: with(words("fallthrough reload_by_mtime upstream"), "reload", notTooOften)},
	"forward":     {args: corefile.upstreamsLast, options: forwardOptions()},
	"header":      {options: words("query response")},
	"hosts":       {args: corefile.fileFirst, options: with(nil, "reload", notTooOften), anyOption: true},
	"loadbalance": {args: corefile.weights, options: with(words("prefer"), "reload", notTooOften)},
	"local":       {options: words("localhost_prefix")},
	"log":         {options: words("class")},
	"metadata":    {},
	"minimal":     {},
	"nsid":        {},
	"rewrite":     {options: words("answer class cname edns0 name rcode ttl type")},
	"template":    {options: templateOptions()},
	"whoami":      {},
	ownDirective: {args: corefile.ownSource, options: words("endpoint_pod_names fallthrough ignore labels namespace_labels " +
		"namespaces noendpoints pods ttl zonal")},
	metricsDirective: {},
}

func forwardOptions() map[string]judge {
	options := words("doh_method except expire failfast_all_unhealthy_upstreams failover force_tcp max_age max_concurrent " +
		"max_connect_attempts max_fails max_idle_conns next next_on_nodata policy prefer_udp read_timeout resolver " +
		"source_address tls_servername")
	return with(with(options, "tls", corefile.filesOnly), "health_check", notTooOften)
}

func templateOptions() map[string]judge {
	options := words("ederror fallthrough match rcode upstream")
	for _, word := range []string{"additional", "answer", "authority"} {
		options = with(options, word, plainTemplates)
	}
	return options
}

// parse returns the server blocks in a user's part.
func parse(key, text string) ([]caddyfile.ServerBlock, error) {
	if err := checkTokens(key, text); err != nil {
		return nil, err
	}
	allowed := slices.Concat(directives, []string{"kubernetes"}, ignored)
	allowed = slices.DeleteFunc(allowed, func(directive string) bool {
		return directive == sharedDirective || directive == ownDirective || directive == metricsDirective
	})
	blocks, err := caddyfile.Parse(nowhere+"/"+key, strings.NewReader(text), allowed)
	if err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), nowhere+"/", ""))
	}
	return blocks, nil
}

// checkTokens refuses what caddyfile's parser would accept or do. The parser accepts a missing brace
// at the end. It inserts environment variables into tokens; this checks the tokens and not the text,
// because the lexer drops some characters. And it reads the files that import names, which error
// messages could show: so a part may import only its own snippets, no snippet may import another, and
// the number of imports is limited.
func checkTokens(key, text string) error {
	tokens := caddyfile.NewDispenser(key, strings.NewReader(text))
	var snippets []string
	depth, imports, snippet := 0, 0, false
	for tokens.Next() {
		if strings.Contains(tokens.Val(), "{$") || strings.Contains(tokens.Val(), "{%") {
			return tokens.Err("environment variables cannot be used: they are kedge's own")
		}
		if strings.Contains(tokens.Val(), "\n") {
			return tokens.Err("a quoted text must end on its line")
		}
		if name, ok := snippetName(tokens.Val()); ok && depth == 0 {
			snippets, snippet = append(snippets, name), true
		}
		switch tokens.Val() {
		case "{":
			depth++
		case "}":
			depth--
			snippet = snippet && depth > 0
		case "import":
			imports++
			if snippet {
				return tokens.Err("a snippet cannot import another one")
			}
			if tokens.NextArg() && !slices.Contains(snippets, tokens.Val()) {
				return tokens.Errf("import of %q: only snippets that are defined earlier in the same part can be imported", tokens.Val())
			}
		}
	}
	if depth > 0 {
		return tokens.Err("a brace is not closed")
	}
	if imports*len(text) > maxImported {
		return fmt.Errorf("%d imports in a part of %d bytes are too many: write out what they import", imports, len(text))
	}
	return nil
}

// snippetName returns the name of the snippet that a token defines, if it defines one.
func snippetName(token string) (string, bool) {
	name, opened := strings.CutPrefix(token, "(")
	name, closed := strings.CutSuffix(name, ")")
	return name, opened && closed && !strings.ContainsAny(name, "/.*?[")
}

// check checks a part in the form in which CoreDNS will read it. count is the number of server blocks
// that it must have.
func (c corefile) check(text string, count int) error {
	tokens := caddyfile.NewDispenser("", strings.NewReader(text))
	for tokens.Next() {
		if tokens.Val() == "import" || strings.Contains(tokens.Val(), "{$") || strings.Contains(tokens.Val(), "{%") {
			return fmt.Errorf("%q cannot be used here", tokens.Val())
		}
	}
	blocks, err := caddyfile.Parse(nowhere+"/Corefile", strings.NewReader(text), directives)
	if err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), nowhere+"/", ""))
	}
	if len(blocks) != count {
		return errors.New("the braces do not match")
	}
	for _, block := range blocks {
		for directive, tokens := range block.Tokens {
			if err := c.checkDirective(directive, tokens); err != nil {
				return fmt.Errorf("%s: %w", strings.TrimPrefix(directive, "kedge-"), err)
			}
		}
	}
	return nil
}

// checkDirective reads tokens in the same way as the setup functions of plugins.
func (c corefile) checkDirective(directive string, tokens []caddyfile.Token) error {
	rule, ok := permitted[directive]
	if !ok {
		return errors.New("this directive cannot be used here")
	}
	for d := caddyfile.NewDispenserTokens("", tokens); d.Next(); {
		if d.Val() != directive {
			return fmt.Errorf("%q does not belong after a closing brace", d.Val())
		}
		if args := d.RemainingArgs(); rule.args != nil {
			if err := rule.args(c, args); err != nil {
				return err
			}
		}
		for d.NextBlock() {
			option := d.Val()
			judge, ok := rule.options[strings.ToLower(option)]
			if option == "{" || !ok && !rule.anyOption {
				return fmt.Errorf("the option %q cannot be used here", option)
			}
			if args := d.RemainingArgs(); judge != nil {
				if err := judge(c, args); err != nil {
					return fmt.Errorf("%s: %w", option, err)
				}
			}
		}
	}
	return nil
}

// ownAddresses checks bind, which only kedge may write.
func (c corefile) ownAddresses(args []string) error {
	for _, arg := range args {
		if !slices.ContainsFunc(c.addresses, func(own netip.Addr) bool { return own.String() == arg }) {
			return errors.New("kedge's DNS listens on the node's address only")
		}
	}
	return nil
}

// ownSource checks the user's kubernetes directive, whose first argument comes from kedge.
func (c corefile) ownSource(args []string) error {
	if len(args) == 0 || args[0] != c.source {
		return errors.New("kedge's own directive cannot be used")
	}
	return nil
}

func (c corefile) fileFirst(args []string) error {
	if len(args) == 0 {
		return errors.New("a file is missing")
	}
	return c.checkFile(args[0])
}

func (c corefile) filesOnly(args []string) error {
	for _, arg := range args {
		if err := c.checkFile(arg); err != nil {
			return err
		}
	}
	return nil
}

// weights checks the arguments of loadbalance.
func (c corefile) weights(args []string) error {
	if len(args) > 1 {
		return c.filesOnly(args[1:])
	}
	return nil
}

// upstreamsLast checks the arguments of forward. forward takes an argument that is not an address for a
// file, and if there is no such file, for a name.
func (c corefile) upstreamsLast(args []string) error {
	for _, to := range args[min(1, len(args)):] {
		if isAddress(to) {
			continue
		}
		if !filepath.IsAbs(to) {
			return fmt.Errorf("%q is not an address: use one such as 192.0.2.53 or tls://192.0.2.53%%dns.example.com", to)
		}
		if err := c.checkFile(to); err != nil {
			return err
		}
	}
	return nil
}

// notTooOften checks the interval of a repeated task, which must not keep the node busy.
func notTooOften(_ corefile, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if every, err := time.ParseDuration(args[0]); err == nil && every > 0 && every < time.Second {
		return fmt.Errorf("%s is too often: use 1s or more", every)
	}
	return nil
}

// checkFile refuses a path outside the folder for files, or one that leads out of it by a link. It
// accepts a file that does not exist yet, because plugins wait for theirs.
func (c corefile) checkFile(path string) error {
	rest, inside := strings.CutPrefix(path, c.folder+"/")
	if !inside || filepath.Clean(path) != path || c.folder == "" {
		return fmt.Errorf("file %q: files must be in the folder %s of each node, with their full path", path, c.folder)
	}
	at := c.folder
	for name := range strings.SplitSeq(rest, "/") {
		at = filepath.Join(at, name)
		info, err := os.Lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return fmt.Errorf("file %q: kedge cannot read its attributes", path)
		case at == path && !info.Mode().IsRegular(), at != path && !info.IsDir():
			return fmt.Errorf("file %q: %s is a link or not a regular file: put the file itself into %s", path, at, c.folder)
		}
	}
	return nil
}

// adapt adds the arguments that a directive would otherwise take from the host: the nameservers of
// resolv.conf for forward, and a file for hosts.
func (c corefile) adapt(directive string, tokens []caddyfile.Token) ([]caddyfile.Token, error) {
	if directive != "forward" && directive != "hosts" {
		return tokens, nil
	}
	var adapted []caddyfile.Token
	depth := 0
	for i, token := range tokens {
		switch token.Text {
		case "{":
			depth++
		case "}":
			depth--
		}
		if depth == 0 && directive == "forward" && token.Text == "/etc/resolv.conf" {
			if len(c.upstreams) == 0 {
				return nil, errors.New("forward to /etc/resolv.conf: this host has no nameservers")
			}
			for _, upstream := range c.upstreams {
				adapted = append(adapted, caddyfile.Token{File: token.File, Line: token.Line, Text: upstream})
			}
			continue
		}
		adapted = append(adapted, token)
		first := i == 0 || !sameLine(tokens[i-1], token)
		alone := i == len(tokens)-1 || !sameLine(token, tokens[i+1]) || tokens[i+1].Text == "{"
		if depth == 0 && directive == "hosts" && first && alone && token.Text == directive {
			adapted = append(adapted, caddyfile.Token{File: token.File, Line: token.Line, Text: filepath.Join(c.folder, "hosts")})
		}
	}
	return adapted, nil
}

// sameLine tells whether two consecutive tokens are on one line. No token has several lines.
func sameLine(before, token caddyfile.Token) bool {
	return before.File == token.File && before.Line == token.Line
}

// told returns the part of CoreDNS's error about a Corefile that users may see, because such an error
// may show what is in a file. Errors of hosts do not: hosts skips lines that it cannot parse.
func (c corefile) told(text string, fault error) error {
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); strings.Contains(line, c.folder+"/") && words[0] != "hosts" {
			return fmt.Errorf("CoreDNS on node %s cannot use this configuration, or a file in %s that it names", c.source, c.folder)
		}
	}
	return errors.New(strings.TrimPrefix(fault.Error(), "starting with listener file descriptors: "))
}
