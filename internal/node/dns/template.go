package dns

import (
	"errors"
	"fmt"
	"text/template"
	syntax "text/template/parse"
)

// templateFunctions are the functions that answers of the template plugin may call. None of them can
// produce much output from little input. The names are text/template's own or CoreDNS's
// (plugin/template/template.go).
//
//upstream:relies-on github.com/coredns/coredns/plugin/template/template.go newTemplate
var templateFunctions = []string{"and", "eq", "ge", "gt", "index", "le", "len", "lt", "ne", "not", "or", "parseInt"}

// maxTemplate is the longest allowed template in bytes.
const maxTemplate = 4 << 10

// plainTemplates refuses templates that could use up all memory or time: those with loops, variables,
// other templates or widths.
func plainTemplates(_ corefile, args []string) error {
	for _, text := range args {
		if len(text) > maxTemplate {
			return fmt.Errorf("a template is longer than %d bytes", maxTemplate)
		}
		names := template.FuncMap{}
		for _, name := range templateFunctions {
			names[name] = func() string { return "" }
		}
		trees, err := syntax.Parse("answer", text, "", "", names)
		if err != nil {
			return fmt.Errorf("read template, which can call only %v: %w", templateFunctions, err)
		}
		if len(trees) > 1 {
			return errors.New("a template cannot define another one")
		}
		if tree := trees["answer"]; tree != nil {
			if err := plainNode(tree.Root); err != nil {
				return err
			}
		}
	}
	return nil
}

// plainNode checks a node and all nodes below it.
func plainNode(node syntax.Node) error {
	switch node := node.(type) {
	case *syntax.ListNode:
		if node == nil {
			return nil
		}
		for _, n := range node.Nodes {
			if err := plainNode(n); err != nil {
				return err
			}
		}
	case *syntax.TextNode, *syntax.CommentNode:
	case *syntax.ActionNode:
		return plainPipe(node.Pipe)
	case *syntax.IfNode:
		return errors.Join(plainPipe(node.Pipe), plainNode(node.List), plainNode(node.ElseList))
	default:
		return fmt.Errorf("%q cannot be used in a template here", node)
	}
	return nil
}

// plainPipe checks a pipeline.
func plainPipe(pipe *syntax.PipeNode) error {
	if len(pipe.Decl) > 0 {
		return errors.New("variables cannot be used in a template here")
	}
	for _, command := range pipe.Cmds {
		for _, arg := range command.Args {
			switch arg := arg.(type) {
			case *syntax.PipeNode:
				if err := plainPipe(arg); err != nil {
					return err
				}
			case *syntax.ChainNode:
				return errors.New("fields of a term in parentheses cannot be used in a template here")
			}
		}
	}
	return nil
}
