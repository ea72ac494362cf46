package registry

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Mirror adds to a node's registries.yaml that images named localhost:PORT/NAME come from the handler
// Nodes, where port is the PORT at which the host's user reaches the handler Clients, and nodes is the
// address of the handler Nodes. The file can be empty. All other images come from where they came before.
// It fails if the file is not valid, or has such an entry already.
func Mirror(file []byte, port uint16, nodes netip.AddrPort) ([]byte, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(file, &document); err != nil {
		return nil, fmt.Errorf("read registries.yaml: %w", err)
	}
	if document.Kind == 0 {
		document = yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{{Kind: yaml.MappingNode}}}
	}
	writeNulls(&document)
	mirrors, err := mapping(document.Content[0], "mirrors")
	if err != nil {
		return nil, err
	}
	name := "localhost:" + strconv.Itoa(int(port))
	for i := 0; i < len(mirrors.Content); i += 2 {
		if mirrors.Content[i].Value == name {
			return nil, fmt.Errorf("registries.yaml has a mirror %s in line %d: remove it, because this cluster's own registry has that name", name, mirrors.Content[i].Line)
		}
	}
	var entry yaml.Node
	if err := entry.Encode(map[string][]string{"endpoint": {"http://" + nodes.String()}}); err != nil {
		return nil, err
	}
	mirrors.Content = append(mirrors.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name, Style: yaml.DoubleQuotedStyle}, &entry)
	mirrors.Style &^= yaml.FlowStyle
	return yaml.Marshal(&document)
}

// writeNulls gives values that the file leaves out a text. The encoder of yaml would make empty strings of
// them.
func writeNulls(node *yaml.Node) {
	if node.Kind == yaml.ScalarNode && node.Tag == "!!null" && node.Value == "" {
		node.Value = "null"
	}
	for _, child := range node.Content {
		writeNulls(child)
	}
}

// mapping returns the mapping below a key, which it makes if it is missing.
func mapping(node *yaml.Node, key string) (*yaml.Node, error) {
	if node.Kind == yaml.ScalarNode && node.Tag == "!!null" {
		*node = yaml.Node{Kind: yaml.MappingNode}
	}
	if node.Kind != yaml.MappingNode {
		return nil, errors.New("registries.yaml is not a mapping with mirrors and configs")
	}
	for i := 0; i < len(node.Content); i += 2 {
		if node.Content[i].Value != key {
			continue
		}
		value := node.Content[i+1]
		if value.Kind == yaml.ScalarNode && value.Tag == "!!null" {
			*value = yaml.Node{Kind: yaml.MappingNode}
		}
		if value.Kind != yaml.MappingNode {
			return nil, fmt.Errorf("%s in line %d of registries.yaml is not a mapping", key, value.Line)
		}
		return value, nil
	}
	value := &yaml.Node{Kind: yaml.MappingNode}
	node.Content = append(node.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, value)
	return value, nil
}
