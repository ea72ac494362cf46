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

// Whoever may write the ConfigMap coredns-custom is not root on the nodes. This file
// has what such a user may say: a list of directives and of their options. None of
// them opens a port, none writes, and those that read a file read it in one folder.

// ignored are directives that are left out of a user's part: many published
// examples have them, and what they do is done by kedge or must not be done
// inside it (loop ends the process, as a fault does with debug; the others open
// ports).
var ignored = []string{"debug", "health", "loop", "prometheus", "ready", "reload"}

// nowhere is a folder that cannot exist: caddyfile's parser looks for imported files
// beside the file that it parses.
const nowhere = "/dev/null"

// maxImported bounds what snippets make of a part, in bytes.
const maxImported = 4 << 20

// rule is what may follow a directive.
type rule struct {
	// args judges the arguments; nil lets all pass.
	args judge
	// options judge the arguments of the first words in the directive's block. Other
	// words are refused. If anyOption is set, all pass.
	options   map[string]judge
	anyOption bool
}

type judge func(c corefile, args []string) error

// anything is for arguments that are neither files nor addresses to listen on.
func anything(corefile, []string) error { return nil }

// words makes options that take anything.
func words(list string) map[string]judge {
	options := map[string]judge{}
	for word := range strings.FieldsSeq(list) {
		options[word] = anything
	}
	return options
}

// with adds an option.
func with(options map[string]judge, word string, judged judge) map[string]judge {
	added := maps.Clone(options)
	if added == nil {
		added = map[string]judge{}
	}
	added[word] = judged
	return added
}

// permitted are all directives that a user's part can end up as. They follow the setup
// functions of CoreDNS's plugins. What these can do and is not here: endpoint, tls
// and kubeconfig of kubernetes, which name another cluster; startup_timeout and
// multicluster of kubernetes, of which one has CoreDNS wait and the other needs
// rights that it has not; expr and var of template, which can take all memory.
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

// parse reads a part of the user's into server blocks.
func parse(key, text string) ([]caddyfile.ServerBlock, error) {
	if err := checkTokens(key, text); err != nil {
		return nil, err
	}
	allowed := slices.Concat(directives, []string{"kubernetes"}, ignored)
	allowed = slices.DeleteFunc(allowed, func(directive string) bool {
		return directive == sharedDirective || directive == ownDirective
	})
	blocks, err := caddyfile.Parse(nowhere+"/"+key, strings.NewReader(text), allowed)
	if err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), nowhere+"/", ""))
	}
	return blocks, nil
}

// checkTokens refuses what caddyfile's parser would let pass or do. A missing brace
// at the end is no fault to it. It puts environment variables into tokens, where the
// tokens count: its lexer drops some characters. And it reads the files that import
// names, and a message about what is in one could show that file: so only snippets
// of the same part can be imported, none in another, and not too often.
func checkTokens(key, text string) error {
	tokens := caddyfile.NewDispenser(key, strings.NewReader(text))
	var snippets []string
	depth, imports, snippet := 0, 0, false
	for tokens.Next() {
		if strings.Contains(tokens.Val(), "{$") || strings.Contains(tokens.Val(), "{%") {
			return tokens.Err("environment variables are kedge's own here and cannot be used")
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
				return tokens.Errf("import of %q: only snippets defined before in the same part can be imported", tokens.Val())
			}
		}
	}
	if depth > 0 {
		return tokens.Err("a brace is not closed")
	}
	if imports*len(text) > maxImported {
		return fmt.Errorf("%d imports in a part of %d bytes: write out what they stand for", imports, len(text))
	}
	return nil
}

// snippetName returns the name that a token defines.
func snippetName(token string) (string, bool) {
	name, opened := strings.CutPrefix(token, "(")
	name, closed := strings.CutSuffix(name, ")")
	return name, opened && closed && !strings.ContainsAny(name, "/.*?[")
}

// check judges a part as it was written, which is what CoreDNS will read: a number
// of server blocks.
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

// checkDirective walks over tokens as the setup functions of plugins do.
func (c corefile) checkDirective(directive string, tokens []caddyfile.Token) error {
	rule, ok := permitted[directive]
	if !ok {
		return errors.New("it cannot be used here")
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

// ownAddresses is for bind, which the user cannot set.
func (c corefile) ownAddresses(args []string) error {
	for _, arg := range args {
		if !slices.ContainsFunc(c.addresses, func(own netip.Addr) bool { return own.String() == arg }) {
			return errors.New("kedge's DNS listens on the node's address only")
		}
	}
	return nil
}

// ownSource is for the user's kubernetes, which gets its first argument from kedge.
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

// weights is for loadbalance.
func (c corefile) weights(args []string) error {
	if len(args) > 1 {
		return c.filesOnly(args[1:])
	}
	return nil
}

// upstreamsLast is for forward, which takes what is no address for a file, and only
// then for a name.
func (c corefile) upstreamsLast(args []string) error {
	for _, to := range args[min(1, len(args)):] {
		if isAddress(to) {
			continue
		}
		if !filepath.IsAbs(to) {
			return fmt.Errorf("%q is no address: use one, as in 192.0.2.53 or tls://192.0.2.53%%dns.example.com", to)
		}
		if err := c.checkFile(to); err != nil {
			return err
		}
	}
	return nil
}

// notTooOften is for what is done again and again: a node has other things to do.
func notTooOften(_ corefile, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if every, err := time.ParseDuration(args[0]); err == nil && every > 0 && every < time.Second {
		return fmt.Errorf("%s is too often: use 1s or more", every)
	}
	return nil
}

// checkFile refuses a file that is not in the folder for such files, or would lead
// out of it. A file that is not there yet passes: plugins wait for theirs.
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
			return fmt.Errorf("file %q: it cannot be looked at", path)
		case at == path && !info.Mode().IsRegular(), at != path && !info.IsDir():
			return fmt.Errorf("file %q: %s is a link or no regular file: put the file itself into %s", path, at, c.folder)
		}
	}
	return nil
}

// adapt gives a directive what it would take from the host by itself: forward the
// nameservers of resolv.conf, and hosts a file.
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

// sameLine tells whether two tokens that follow each other are on one line. No token
// has several.
func sameLine(before, token caddyfile.Token) bool {
	return before.File == token.File && before.Line == token.Line
}

// told returns what users may know of CoreDNS's fault about a Corefile: such a fault
// may show what is in a file. Those of hosts do not: it passes over what it cannot
// read.
func (c corefile) told(text string, fault error) error {
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); strings.Contains(line, c.folder+"/") && words[0] != "hosts" {
			return fmt.Errorf("CoreDNS on node %s cannot use it, or one of the files in %s that it names", c.source, c.folder)
		}
	}
	return errors.New(strings.TrimPrefix(fault.Error(), "starting with listener file descriptors: "))
}
