package dns

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/coredns/caddy/caddyfile"
)

// override writes the directives of one *.override part.
func (c corefile) override(out *bytes.Buffer, key, text string) error {
	// This is on one line with the text, so that the line numbers in errors are the text's.
	blocks, err := parse(key, ". { "+text+"\n}\n")
	if err != nil {
		return err
	}
	if len(blocks) != 1 {
		return errors.New("an override has directives only: put server blocks in a key that ends with .server")
	}
	var written bytes.Buffer
	if err := c.directives(&written, blocks[0]); err != nil {
		return err
	}
	if err := c.check(".{\n"+written.String()+"}\n", 1); err != nil {
		return err
	}
	_, err = written.WriteTo(out)
	return err
}

// servers writes the server blocks of one *.server part.
func (c corefile) servers(out *bytes.Buffer, key, text string) error {
	blocks, err := parse(key, text)
	if err != nil {
		return err
	}
	var written bytes.Buffer
	for _, block := range blocks {
		if err := c.server(&written, block); err != nil {
			return err
		}
	}
	if err := c.check(written.String(), len(blocks)); err != nil {
		return err
	}
	_, err = written.WriteTo(out)
	return err
}

// server writes one of the user's server blocks.
func (c corefile) server(out *bytes.Buffer, block caddyfile.ServerBlock) error {
	for i, zone := range block.Keys {
		zone, err := c.key(zone)
		if err != nil {
			return err
		}
		if i > 0 {
			out.WriteString(" ")
		}
		out.WriteString(zone)
	}
	out.WriteString(" {\n")
	c.prelude(out)
	if err := c.directives(out, block); err != nil {
		return err
	}
	out.WriteString("}\n")
	return nil
}

// key returns the key of a user's server block with kedge's port. The port in the key is only where
// its author believes the cluster's DNS to listen.
func (c corefile) key(key string) (string, error) {
	zone := strings.TrimPrefix(key, "dns://")
	if scheme, _, found := strings.Cut(zone, "://"); found {
		return "", fmt.Errorf("server block %s: the cluster's DNS does not speak %s, use dns", key, scheme)
	}
	// The key may end in an IPv6 prefix, whose last part is not a port.
	if i := strings.LastIndexByte(zone, ':'); i >= 0 && strings.Trim(zone[i+1:], "0123456789") == "" {
		zone = zone[:i]
	}
	if zone, err := quote(zone); err != nil || strings.HasPrefix(zone, `"`) || strings.ContainsAny(zone, "{},()") {
		return "", fmt.Errorf("server block %q: not a zone", key)
	}
	return fmt.Sprintf("%s:%d", zone, c.port), nil
}

// directives writes the directives of a parsed server block as text, which is the form that CoreDNS
// reads.
func (c corefile) directives(out *bytes.Buffer, block caddyfile.ServerBlock) error {
	for _, directive := range slices.Sorted(maps.Keys(block.Tokens)) {
		if directive == "bind" {
			return errors.New("bind cannot be set: kedge's DNS listens only on the node's addresses")
		}
		if slices.Contains(ignored, directive) {
			continue
		}
		tokens, err := c.adapt(directive, block.Tokens[directive])
		if err != nil {
			return err
		}
		depth := 0
		for i, token := range tokens {
			text, err := quote(token.Text)
			if err != nil {
				return err
			}
			newLine := i == 0 || !sameLine(tokens[i-1], token)
			if token.Text == "}" {
				depth--
			}
			switch {
			case newLine && i > 0:
				out.WriteString("\n" + strings.Repeat("\t", depth+1))
			case newLine:
				out.WriteString("\t")
			default:
				out.WriteString(" ")
			}
			if newLine && depth == 0 && token.Text == "kubernetes" && directive == "kubernetes" {
				text = ownDirective + " " + c.source
			}
			out.WriteString(text)
			if token.Text == "{" {
				depth++
			}
		}
		out.WriteString("\n")
	}
	return nil
}

// quote returns a token in the form that caddyfile's lexer reads back
// (coredns/caddy/caddyfile/lexer.go). Blanks, quotes and comment signs must be inside quotes. There a
// backslash escapes only a quote, not even itself.
//
//upstream:relies-on github.com/coredns/caddy/caddyfile/lexer.go lexer.next
func quote(token string) (string, error) {
	special := func(r rune) bool { return r == '#' || r == '"' || unicode.IsSpace(r) }
	if token != "" && !strings.ContainsFunc(token, special) {
		return token, nil
	}
	if strings.Contains(token, `\"`) || strings.HasSuffix(token, `\`) {
		return "", fmt.Errorf("%q: a backslash before a quote cannot be used here", token)
	}
	return `"` + strings.ReplaceAll(token, `"`, `\"`) + `"`, nil
}
